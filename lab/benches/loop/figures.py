"""The results of `bench-loop`: predicted and measured figures, which of them were missed, and their
table. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarking.analysis.fit import Fit
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.intervals import Interval
from lab.kit.moments import SpeedOfMoments

# Errors that the proof allows, relative to measurements,
MAX_TTFT_ERROR, MAX_ITL_ERROR, MAX_RATE_ERROR = 0.20, 0.10, 0.15
# and the widest half interval that it allows, up to this share of capacity.
MAX_HALF_WIDTH, NARROW_UP_TO = 0.30, 0.8
LEAST_PER_SPEED = 0.01  # least sensitivity of TTFT to divide by


@dataclass(frozen=True, slots=True)
class Compared:
    """A predicted figure, with its 95 % interval if there is one, and the measurement."""

    name: str
    predicted: float
    bounds: tuple[float, float] | None
    measured: Interval
    allowed: float
    max_half_width: float | None = MAX_HALF_WIDTH

    @property
    def error(self) -> float:
        return self.predicted / self.measured.value - 1

    @property
    def half_width(self) -> float | None:
        """Returns half of the interval's width relative to the prediction."""
        if self.bounds is None:
            return None
        low, high = self.bounds
        return (high - low) / 2 / self.predicted

    @property
    def verdict(self) -> str:
        """Returns `missed`, or why the prediction is not missed."""
        if abs(self.error) <= self.allowed:
            return f"within {self.allowed:.0%}"
        if self.bounds is None or not self.bounds[0] <= self.measured.value <= self.bounds[1]:
            return "missed"
        half_width = self.half_width or 0.0
        if self.max_half_width is not None and half_width > self.max_half_width:
            return f"missed: in an interval of ± {half_width:.0%}"
        return f"in its interval of ± {half_width:.0%}"

    @property
    def is_missed(self) -> bool:
        return self.verdict.startswith("missed")


@dataclass(frozen=True, slots=True)
class Check:
    """The results of one load, from all of its rows."""

    share: float  # as a share of the measured capacity
    rate_per_s: float  # rate of requests that came due
    methods: tuple[str, ...]
    ttft: Compared
    itl: Compared
    answered: Compared  # requests/s

    @property
    def figures(self) -> tuple[Compared, Compared, Compared]:
        return self.ttft, self.itl, self.answered


@dataclass(frozen=True, slots=True)
class LoopResult:
    """The result of a loop. `by_rate` are the same checks predicted from their rates alone;
    `by_loops` use the speed from closed loops around them, if the server's steps gave it.

    `rates` are the capacity and, if the checks cross it, the highest rate with a mean ITL within
    `level`. `ttft_per_speed` is, for each check, the relative change of predicted TTFT over the
    relative change of all times.
    """

    fit: Fit
    speeds: SpeedOfMoments
    checks: tuple[Check, ...]
    ttft_per_speed: tuple[float, ...]
    by_rate: tuple[Check, ...]
    by_loops: tuple[Check, ...]
    rates: tuple[Compared, ...]
    level: Slo
    num_rows: int
    num_disturbed: int

    def misses(self) -> list[str]:
        """Returns predictions that are off by more than allowed; empty if the loop is proved."""
        found = [
            f"{figure.name} at {check.share:.0%} of capacity ({figure.error:+.1%})"
            for check in self.checks
            for figure in check.figures
            if figure.is_missed
        ]
        found += [f"{rate.name} ({rate.error:+.1%})" for rate in self.rates if rate.is_missed]
        return found


def result_lines(result: LoopResult) -> Iterator[str]:
    """Yields a table of predicted and measured figures. Errors are relative to the measured."""
    assert result.fit.curve is not None
    yield f"- {result.fit.curve.line()}"
    yield f"- {result.speeds.line()}"
    yield ""
    yield from _table(result.checks, result.rates)
    misses = result.misses()
    yield ""
    yield (
        f"Allowed: TTFT {MAX_TTFT_ERROR:.0%}, ITL {MAX_ITL_ERROR:.0%}, rates {MAX_RATE_ERROR:.0%}, "
        f"or within the predicted interval, of at most ± {MAX_HALF_WIDTH:.0%} up to "
        f"{NARROW_UP_TO:.0%} of capacity. "
        + (f"Missed: {'; '.join(misses)}." if misses else "None is missed.")
    )
    yield ""
    yield _sensitivity_line(result)
    yield "\nThe same of the rates alone, in the long run:\n"
    yield from _table(result.by_rate, ())
    if result.by_loops:
        yield "\nThe same at the speed that the closed loops around each row say:\n"
        yield from _table(result.by_loops, ())
    yield ""
    yield (
        f"{result.num_disturbed} of {result.num_rows} rows were measured again, because the host "
        "of this virtual machine took too much of it meanwhile."
    )


def _sensitivity_line(result: LoopResult) -> str:
    """Returns how well a moment's speed must be known, and how well it is known."""
    parts = []
    for check, per_speed in zip(result.checks, result.ttft_per_speed, strict=True):
        allowed = check.ttft.allowed
        within = 100 * allowed / max(per_speed, LEAST_PER_SPEED)
        parts.append(
            f"{per_speed:.1f} % at {check.share:.0%} of capacity, so that {allowed:.0%} need the "
            f"speed within ± {within:.1f} %"
        )
    return (
        f"A machine that is 1 % slower has a TTFT that is higher by {'; '.join(parts)}. "
        f"The speed of a moment is known to ± {result.speeds.error:.1%}."
    )


def _table(checks: tuple[Check, ...], rates: tuple[Compared, ...]) -> Iterator[str]:
    yield "| | of capacity | requests/s | predicted | measured | error | |"
    yield "|---|---|---|---|---|---|---|"
    for check in checks:
        for figure in check.figures:
            by = f", {' and '.join(check.methods)}" if figure.bounds else ""
            yield _row(figure, f"{check.share:.0%}", f"{check.rate_per_s:.2f}", by)
    for rate in rates:
        yield _row(rate, "", "", "")


def _row(figure: Compared, share: str, rate: str, by: str) -> str:
    bounds = ""
    if figure.bounds is not None:
        bounds = f" [{figure.bounds[0]:.4g}, {figure.bounds[1]:.4g}]"
    predicted = f"{figure.predicted:.4g}{bounds}{by}"
    return (
        f"| {figure.name} | {share} | {rate} | {predicted} | {figure.measured} "
        f"| {figure.error:+.1%} | {figure.verdict} |"
    )
