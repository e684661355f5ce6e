"""What `bench-loop` finds: figures predicted beside measured, which of them are missed, and the
table of them all. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarking.analysis.fit import Fit
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.intervals import Interval
from lab.kit.moments import SpeedOfMoments

# What the proof allows, of what was measured,
MAX_TTFT_ERROR, MAX_ITL_ERROR, MAX_RATE_ERROR = 0.20, 0.10, 0.15
# and of the half width of an interval, up to this share of capacity.
MAX_HALF_WIDTH, NARROW_UP_TO = 0.30, 0.8
LEAST_PER_SPEED = 0.01  # of TTFT, to divide by


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure predicted, its 95 % interval where there is one, and measured."""

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
        """Of the interval, relative to what is predicted."""
        if self.bounds is None:
            return None
        low, high = self.bounds
        return (high - low) / 2 / self.predicted

    @property
    def verdict(self) -> str:
        """`missed`, or why it is not."""
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
    """One load: all of its rows together."""

    share: float  # of the measured capacity
    rate_per_s: float  # that came due
    methods: tuple[str, ...]
    ttft: Compared
    itl: Compared
    answered: Compared  # requests/s

    @property
    def figures(self) -> tuple[Compared, Compared, Compared]:
        return self.ttft, self.itl, self.answered


@dataclass(frozen=True, slots=True)
class LoopResult:
    """`by_rate`: the same checks, predicted of their rates alone. `by_loops`: at the speed that the
    closed loops around them say, where the server's own steps said it.

    `rates`: the capacity and, where the checks cross it, the highest rate with a mean ITL within
    `level`. `ttft_per_speed`: of each check, the relative change of its predicted TTFT over that of
    all times.
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
        """Predictions that are off by more than allowed; empty where the loop is proved."""
        found = [
            f"{figure.name} at {check.share:.0%} of capacity ({figure.error:+.1%})"
            for check in self.checks
            for figure in check.figures
            if figure.is_missed
        ]
        found += [f"{rate.name} ({rate.error:+.1%})" for rate in self.rates if rate.is_missed]
        return found


def result_lines(result: LoopResult) -> Iterator[str]:
    """Predicted beside measured, as a table; errors are (predicted - measured) / measured."""
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
    """How well the speed of a moment has to be known, beside how well it is."""
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
    said = f"{figure.predicted:.4g}{bounds}{by}"
    return (
        f"| {figure.name} | {share} | {rate} | {said} | {figure.measured} | {figure.error:+.1%} "
        f"| {figure.verdict} |"
    )
