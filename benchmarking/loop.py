"""The loop's proof: measure a server, fit it, ask the optimizer, and measure what it said.

Every step takes what the one before found; `close_loop` is the whole. Loads are Poisson arrivals,
because that is what the optimizer's replica has, in the sweep and in the check alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarking.curve import LoadPoint
from benchmarking.driver import Driver
from benchmarking.errors import Interrupted
from benchmarking.fit import Fit, fit_run
from benchmarking.goodput import Slo
from benchmarking.predict import Beside, Optimizer, beside_lines, predict, request_shape
from benchmarking.records import Load
from benchmarking.search import MaxLoad, Shape, search_max_rate

# The prediction is the start, so the limit should be near; between the last two probes it is
# interpolated.
SEARCH_STEP, SEARCH_TOLERANCE = 1.2, 0.1
REQUESTS_EACH = 8  # of each user of the closed loop that finds places and capacity
# What the proof allows, of what was measured.
MAX_TTFT_ERROR, MAX_ITL_ERROR, MAX_RATE_ERROR = 0.20, 0.10, 0.15


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """`shape`: what is checked. `users`: more than the server has places. Seconds are per row.

    A load near capacity is known worst: what waits for a place is rare and comes in bursts, so
    checks are the longest rows.
    """

    shape: Shape
    users: int
    sweep_s: float
    check_s: float
    search_s: float
    seed: int = 0
    accelerator: str = "this machine"
    sweep_shares: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # of what `users` get
    length_factors: tuple[float, ...] = (0.75, 1.0, 1.25)  # of the prompt length that is checked
    check_shares: tuple[float, ...] = (0.5, 0.8)  # of what `users` get, too

    def sweep_loads(self, saturated_per_s: float) -> list[Load]:
        """Rates and prompt lengths around the ones that are checked.

        In random order: a machine that slows down meanwhile must not look like a slope.
        """
        loads = [
            Shape(
                self.shape.model, round(factor * self.shape.input_tokens), self.shape.output_tokens
            ).at_rate(share * saturated_per_s, self.sweep_s)
            for factor in self.length_factors
            for share in self.sweep_shares
        ]
        Random(self.seed).shuffle(loads)
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
    """`max_rate` is None where a search found no limit on one of its sides.

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
    for load in plan.sweep_loads(capacity_per_s):
        _one(driver.measure(load))
    fitted = fit_run(driver.run, plan.shape.model)
    perf = fitted.perf_data(plan.shape.model, plan.accelerator)
    optimizer.set_perf(perf)
    tell(f"fitted and posted: {perf}")

    tokens = request_shape(saturated)
    top = optimizer.max_rate(perf, tokens, Slo())
    assert top is not None  # without targets every replica has a highest rate
    checked = [
        _one(driver.measure(plan.shape.at_rate(share * capacity_per_s, plan.check_s)))
        for share in plan.check_shares
    ]
    checks = predict(optimizer, perf, checked)
    slo = Slo(itl_ms=fitted.decode.at(fitted.max_batch_size / 2))
    return LoopResult(
        fit=fitted,
        capacity=Rate(top.rate_per_s, capacity_per_s),
        checks=tuple(checks),
        slo=slo,
        max_rate=max_rate(driver, plan, optimizer, perf, tokens, slo),
        capacity_again_per_s=_one(driver.measure(saturating)).throughput_per_s,
    )


def max_rate(
    driver: Driver,
    plan: LoopPlan,
    optimizer: Optimizer,
    perf: Mapping[str, Any],
    tokens: tuple[int, int],
    slo: Slo,
) -> Rate | None:
    """The highest rate whose mean ITL keeps `slo`: by the optimizer, and by search."""
    predicted = optimizer.max_rate(perf, tokens, slo)
    if predicted is None:
        return None
    found = driver.drive(
        search_max_rate(
            plan.shape,
            lambda point: keeps_on_average(point, slo),
            predicted.rate_per_s,
            plan.search_s,
            step=SEARCH_STEP,
            tolerance=SEARCH_TOLERANCE,
        )
    )
    if found is None:
        raise Interrupted
    measured = crossing_per_s(found, slo)
    return None if measured is None else Rate(predicted.rate_per_s, measured)


def keeps_on_average(point: LoadPoint, slo: Slo) -> bool:
    """The optimizer's levels are bounds on means, not on every request."""
    assert slo.itl_ms is not None
    return point.error_share == 0 and point.itl is not None and point.itl.mean.value <= slo.itl_ms


def crossing_per_s(found: MaxLoad, slo: Slo) -> float | None:
    """Between the last rate that kept the level and the first that did not, where ITL crosses it,
    on a straight line between the two; halfway where the second failed in another way."""
    met, missed = found.met, found.missed
    if met is None or missed is None or met.itl is None:
        return None
    low, high = met.offered_per_s, missed.offered_per_s
    assert slo.itl_ms is not None
    if missed.itl is None or missed.itl.mean.value <= slo.itl_ms:
        return (low + high) / 2
    below_ms, above_ms = met.itl.mean.value, missed.itl.mean.value
    return low + (high - low) * (slo.itl_ms - below_ms) / (above_ms - below_ms)


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
