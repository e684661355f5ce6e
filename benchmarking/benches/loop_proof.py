"""The loop's proof: measure a server, fit it, ask the optimizer, and compare what it said.

`close_loop` is the whole. Loads are Poisson arrivals, because that is what the optimizer's replica
has, in the sweep and in the check alike. The rows of both are measured in turn, so that a machine
whose speed drifts does so for both; the fit never sees a row of a check. A row in which the host
of a virtual machine took too much of it is measured again: by what it took, not by what came out.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TypeVar

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.fit import Fit, fit_run
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.predict import Beside, Optimizer, beside_lines, predict, request_shape
from benchmarking.analysis.search import Shape
from benchmarking.errors import Disturbed, Interrupted
from benchmarking.records import Load
from benchmarking.rows.driver import Driver

T = TypeVar("T")

REQUESTS_EACH = 8  # of each user of the closed loop that finds places and capacity
# What the proof allows, of what was measured.
MAX_TTFT_ERROR, MAX_ITL_ERROR, MAX_RATE_ERROR = 0.20, 0.10, 0.15


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """`shape`: what is checked. `users`: more than the server has places. Seconds are per row.

    A load near capacity is known worst: what waits for a place is rare and comes in bursts, so
    the last of the check shares has more rows.
    """

    shape: Shape
    users: int
    sweep_s: float
    check_s: float
    seed: int = 0
    accelerator: str = "this machine"
    sweep_shares: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # of what `users` get
    length_factors: tuple[float, ...] = (0.75, 1.0, 1.25)  # of the prompt length that is checked
    check_shares: tuple[float, ...] = (0.5, 0.8)  # of what `users` get, too
    # Measured as well, so that the highest rate within a level lies between two.
    more_shares: tuple[float, ...] = (0.65, 0.9)
    rounds: int = 6  # each of all checks and a part of the sweep
    last_rows: int = 2  # of the last of the check shares in each round; of the others one
    max_stolen_share: float = 0.1  # of a core, in a row that counts
    max_disturbed: int = 60  # rows that do not count

    def sweep_loads(self, saturated_per_s: float) -> list[Load]:
        """Rates and prompt lengths around the ones that are checked."""
        return [
            Shape(
                self.shape.model, round(factor * self.shape.input_tokens), self.shape.output_tokens
            ).at_rate(share * saturated_per_s, self.sweep_s)
            for factor in self.length_factors
            for share in self.sweep_shares
        ]

    def check_loads(self, saturated_per_s: float) -> list[Load]:
        """One for each of the check shares, then one for each of the others."""
        return [
            self.shape.at_rate(share * saturated_per_s, self.check_s)
            for share in (*self.check_shares, *self.more_shares)
        ]

    @property
    def saturating(self) -> Load:
        return self.shape.at_concurrency(self.users, REQUESTS_EACH)

    def loads(self, saturated_per_s: float) -> list[tuple[Load, bool]]:
        """Returns loads, and whether each is a check. Every round has all loads to be
        checked and a part of the sweep, in random order: a machine that slows down meanwhile must
        look neither like a slope nor like a wrong prediction."""
        rng = Random(self.seed)
        sweep = self.sweep_loads(saturated_per_s)
        rng.shuffle(sweep)
        checks = self.check_loads(saturated_per_s)
        checks += [checks[len(self.check_shares) - 1]] * (self.last_rows - 1)
        loads = []
        for number in range(self.rounds):
            in_turn = [(load, True) for load in checks]
            in_turn += [(load, False) for load in sweep[number :: self.rounds]]
            rng.shuffle(in_turn)
            loads += in_turn
        return loads


@dataclass(frozen=True, slots=True)
class Rows:
    """All that was measured, in order. `checked` and `disturbed` are numbers of rows."""

    points: tuple[LoadPoint, ...]
    saturated: LoadPoint
    checked: tuple[int, ...]
    disturbed: tuple[int, ...]


def measure_in_turn(plan: LoopPlan) -> Generator[Load, LoadPoint, Rows]:
    """The closed loop that finds the capacity, then sweep and checks.

    A row in which the host took too much is measured again at once. Raises Disturbed.
    """
    points: list[LoadPoint] = []
    disturbed: list[int] = []

    def undisturbed(load: Load) -> Generator[Load, LoadPoint, LoadPoint]:
        while True:
            point = yield load
            points.append(point)
            if (point.stolen_share or 0.0) <= plan.max_stolen_share:
                return point
            disturbed.append(len(points) - 1)
            if len(disturbed) > plan.max_disturbed:
                raise Disturbed(len(points), len(disturbed), plan.max_stolen_share)

    saturated = yield from undisturbed(plan.saturating)
    checked = []
    for load, is_check in plan.loads(saturated.throughput_per_s):
        yield from undisturbed(load)
        if is_check:
            checked.append(len(points) - 1)
    return Rows(tuple(points), saturated, tuple(checked), tuple(disturbed))


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second: what the optimizer says and what was measured."""

    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class LoopResult:
    """`max_rate` is None where no rate keeps `slo` on average, or where the loads did not cross it.

    `capacity_again_per_s`: what the closed loop that measured `capacity` got after all the rest. By
    how much it differs the machine itself drifted meanwhile. `num_disturbed` of `num_rows` do not
    count.
    """

    fit: Fit
    capacity: Rate
    checks: tuple[Beside, ...]
    slo: Slo
    max_rate: Rate | None
    capacity_again_per_s: float
    num_rows: int
    num_disturbed: int

    def misses(self) -> list[str]:
        """Predictions with a larger error than allowed; empty where the loop is proved."""
        found = []
        for beside in self.checks:
            rate = f"at {beside.prediction.rate_per_s:.2f} requests/s"
            found += _miss(f"TTFT {rate}", beside.ttft_error, MAX_TTFT_ERROR)
            found += _miss(f"ITL {rate}", beside.itl_error, MAX_ITL_ERROR)
        if self.max_rate is None:
            return [*found, f"no maximum rate with mean {self.slo} was found"]
        return found + _miss("the maximum rate", self.max_rate.error, MAX_RATE_ERROR)


def close_loop(
    plan: LoopPlan, driver: Driver, optimizer: Optimizer, tell: Callable[[str], None]
) -> LoopResult:
    """Raises Interrupted, Disturbed, Unfit, OptimizerUnusable, RowRefused and NotWritable."""
    rows = _told(driver.drive(measure_in_turn(plan)))
    capacity_per_s = rows.saturated.throughput_per_s
    left_out = {*rows.checked, *rows.disturbed}
    fitted = fit_run(driver.run, plan.shape.model, left_out=left_out)
    perf = fitted.perf_data(plan.shape.model, plan.accelerator)
    optimizer.set_perf(perf)
    tell(f"fitted and posted: {perf}")

    tokens = request_shape(rows.saturated.measured)
    top = optimizer.max_rate(perf, tokens, Slo())
    assert top is not None  # without targets every replica has a highest rate
    checked = [rows.points[row] for row in rows.checked]
    found = {beside.load: beside for beside in predict(optimizer, perf, checked)}
    besides = [found[load] for load in plan.check_loads(capacity_per_s)]
    slo = Slo(itl_ms=fitted.decode.at(fitted.max_batch_size / 4))
    within = optimizer.max_rate(perf, tokens, slo)
    crossed_per_s = crossing_per_s(besides, slo)
    return LoopResult(
        fit=fitted,
        capacity=Rate(top.rate_per_s, capacity_per_s),
        checks=tuple(besides[: len(plan.check_shares)]),
        slo=slo,
        max_rate=Rate(within.rate_per_s, crossed_per_s) if within and crossed_per_s else None,
        capacity_again_per_s=_told(driver.measure(plan.saturating)).throughput_per_s,
        num_rows=len(rows.points),
        num_disturbed=len(rows.disturbed),
    )


def crossing_per_s(measured: Iterable[Beside], slo: Slo) -> float | None:
    """The rate at which the mean ITL crosses its level, on straight lines between those measured.

    None where all are above it, or all below. The optimizer's levels are bounds on means, too.
    """
    assert slo.itl_ms is not None
    points = sorted((beside.prediction.rate_per_s, beside.itl.value) for beside in measured)
    for (low, below_ms), (high, above_ms) in pairwise(points):
        if below_ms <= slo.itl_ms < above_ms:
            return low + (high - low) * (slo.itl_ms - below_ms) / (above_ms - below_ms)
    return None


def _told(finding: T | None) -> T:
    if finding is None:
        raise Interrupted
    return finding


def result_lines(result: LoopResult) -> Sequence[str]:
    """Predicted beside measured, as a table; errors are (predicted - measured) / measured."""
    before, after = result.capacity.measured, result.capacity_again_per_s
    lines = [
        *(f"- {line}" for line in result.fit.lines()),
        "",
        *beside_lines(result.checks),
        _row("capacity, requests/s", result.capacity),
    ]
    if result.max_rate is not None:
        name = f"requests/s with mean ITL ≤ {result.slo.itl_ms:.2f} ms"
        lines.append(_row(name, result.max_rate))
    misses = result.misses()
    return [
        *lines,
        "",
        f"Allowed errors: TTFT {MAX_TTFT_ERROR:.0%}, ITL {MAX_ITL_ERROR:.0%}, maximum rate "
        f"{MAX_RATE_ERROR:.0%}. "
        + (f"Beyond: {'; '.join(misses)}." if misses else "None is beyond."),
        "",
        f"The closed loop that measured the capacity got {before:.2f} requests/s at first and "
        f"{after:.2f} at the end, {after / before - 1:+.1%}: so much the machine itself drifted.",
        f"{result.num_disturbed} of {result.num_rows} rows were measured again, because the host "
        "of this virtual machine took too much of it meanwhile.",
    ]


def _row(name: str, rate: Rate) -> str:
    return f"| {name} | | {rate.predicted:.2f} | {rate.measured:.2f} | {rate.error:+.1%} |"


def _miss(what: str, error: float, allowed: float) -> list[str]:
    return [] if abs(error) <= allowed else [f"{what} is off by {error:+.1%}"]
