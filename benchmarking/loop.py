"""The loop's proof: measure a server, fit it, ask the optimizer, and compare what it said.

`close_loop` is the whole. Loads are Poisson arrivals, because that is what the optimizer's replica
has, in the sweep and in the check alike. The rows of both are measured in turn, so that a machine
whose speed drifts does so for both; the fit never sees a row of a check.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from benchmarking.curve import LoadPoint
from benchmarking.driver import Driver
from benchmarking.errors import Interrupted
from benchmarking.fit import Fit, fit_run
from benchmarking.goodput import Slo
from benchmarking.predict import Beside, Optimizer, beside_lines, predict, request_shape
from benchmarking.records import Load
from benchmarking.search import Shape

REQUESTS_EACH = 8  # of each user of the closed loop that finds places and capacity
# What the proof allows, of what was measured.
MAX_TTFT_ERROR, MAX_ITL_ERROR, MAX_RATE_ERROR = 0.20, 0.10, 0.15


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """`shape`: what is checked. `users`: more than the server has places. Seconds are per row.

    A load near capacity is known worst: what waits for a place is rare and comes in bursts, so
    a check has many rows.
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
    check_rows: int = 8  # of each share

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

    def loads(self, saturated_per_s: float) -> list[tuple[Load, bool]]:
        """Of sweep and checks, and whether it is a check. Each of the rounds has every load to be
        checked and a part of the sweep, in random order: a machine that slows down meanwhile must
        look neither like a slope nor like a wrong prediction."""
        rng = Random(self.seed)
        sweep = self.sweep_loads(saturated_per_s)
        rng.shuffle(sweep)
        loads = []
        for number in range(self.check_rows):
            in_turn = [(load, True) for load in self.check_loads(saturated_per_s)]
            in_turn += [(load, False) for load in sweep[number :: self.check_rows]]
            rng.shuffle(in_turn)
            loads += in_turn
        return loads


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
    how much it differs the machine itself drifted meanwhile.
    """

    fit: Fit
    capacity: Rate
    checks: tuple[Beside, ...]
    slo: Slo
    max_rate: Rate | None
    capacity_again_per_s: float

    def misses(self) -> list[str]:
        """What is predicted worse than allowed; empty where the loop is proved."""
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
    """Raises Interrupted, Unfit, OptimizerUnusable, RowRefused and NotWritable."""
    saturating = plan.shape.at_concurrency(plan.users, REQUESTS_EACH)
    saturated = _one(driver.measure(saturating))
    capacity_per_s = saturated.throughput_per_s
    checked: dict[int, LoadPoint] = {}  # by number of their row
    for load, is_check in plan.loads(capacity_per_s):
        row = len(driver.run.rows)
        point = _one(driver.measure(load))
        if is_check:
            checked[row] = point
    fitted = fit_run(driver.run, plan.shape.model, left_out=checked)
    perf = fitted.perf_data(plan.shape.model, plan.accelerator)
    optimizer.set_perf(perf)
    tell(f"fitted and posted: {perf}")

    tokens = request_shape(saturated.measured)
    top = optimizer.max_rate(perf, tokens, Slo())
    assert top is not None  # without targets every replica has a highest rate
    found = {beside.load: beside for beside in predict(optimizer, perf, checked.values())}
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
        capacity_again_per_s=_one(driver.measure(saturating)).throughput_per_s,
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


def _one(point: LoadPoint | None) -> LoadPoint:
    if point is None:
        raise Interrupted
    return point


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
    ]


def _row(name: str, rate: Rate) -> str:
    return f"| {name} | | {rate.predicted:.2f} | {rate.measured:.2f} | {rate.error:+.1%} |"


def _miss(what: str, error: float, allowed: float) -> list[str]:
    return [] if abs(error) <= allowed else [f"{what} is off by {error:+.1%}"]
