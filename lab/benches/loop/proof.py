"""The loop's proof: fits a service curve, predicts every check, and compares with measurements.

Each row to check has a prediction of its own, for its requests as they came due and at the speed of
its moment. The speed comes from the server's steps, or else from the closed loops around the row. A
load's prediction is the mean over its rows. The error of the speed is part of the interval, less so
if several rows are averaged. From a rate alone, the optimizer predicts the long run, from which a
few seconds may differ much.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from benchmarking.analysis.closed_loops import closed_loops
from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.fit import Fit, fit_run
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.intervals import Interval, mean_within_run, over_repeats
from benchmarking.analysis.latency import ITL, TTFT, mean_tokens, output_tokens, succeeded
from benchmarking.analysis.predict import OptimizerApi, Prediction
from benchmarking.analysis.service_curve import ServiceCurve
from benchmarking.errors import Unfit
from benchmarking.records import MAX_SCV, Run, Workload
from lab.benches.loop.figures import (
    MAX_HALF_WIDTH,
    MAX_ITL_ERROR,
    MAX_RATE_ERROR,
    MAX_TTFT_ERROR,
    NARROW_UP_TO,
    Check,
    Compared,
    LoopResult,
)
from lab.benches.loop.moments import Ask, Fitter, Moments, fit_moments
from lab.benches.loop.plan import LoopPlan, Rows
from lab.benches.loop.speed_log import Reading, steps_course
from lab.kit.curves import at_speed, exact
from lab.kit.mixed_loops import rate_per_s
from lab.kit.moments import fit_drifting, fit_in_course
from lab.kit.questions import max_rate, request_shape
from lab.kit.replays import replay

At = tuple[LoadPoint, ServiceCurve]
"""A row, and the curve at the speed of its moment."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows of a run. `readings` are the server's reports of its steps, if it makes any."""

    run: Run
    rows: Rows
    readings: Sequence[Reading]


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a server cuts prompts to fit into its steps. Loops do not show this."""

    chunk_tokens: int | None = None
    budget_tokens: int | None = None

    def of(self, curve: ServiceCurve) -> ServiceCurve:
        """Returns the curve with these cuts."""
        return replace(curve, chunk_tokens=self.chunk_tokens, budget_tokens=self.budget_tokens)


NO_CUTS = Cuts()
OTHERWISE = 1.05  # factor on speed, up and down, to find the sensitivity to it


@dataclass(frozen=True, slots=True)
class Predictor:
    """An optimizer, and the performance data of queries, to which a curve is added."""

    optimizer: OptimizerApi
    perf: Mapping[str, Any]

    def predict_requests(self, part: LoadPoint, curve: ServiceCurve) -> Prediction:
        """Returns the simulation's prediction for exactly the requests of a row."""
        shape = request_shape(part.measured)
        return replay(self._at(curve, shape), part, shape, curve.slowness)

    def predict_rate(self, part: LoadPoint, curve: ServiceCurve) -> Prediction:
        """Returns the long-run prediction for a row's rate. Raises OptimizerUnusable."""
        answered = succeeded(part.measured)
        _, out_tokens = mean_tokens(answered)
        lengths = [output_tokens(record) for record in answered]
        spread = min(float(np.var(lengths)) / out_tokens**2, MAX_SCV)
        shape = request_shape(answered)
        return self.optimizer.analyze(self._at(curve, shape), shape, part.offered_per_s, spread)

    def max_rate_per_s(self, like: LoadPoint, curve: ServiceCurve, slo: Slo) -> float | None:
        """Returns the highest rate of requests like `like` with means within `slo`."""
        shape = request_shape(like.measured)
        found = max_rate(self.optimizer, self._at(curve, shape), shape, slo)
        return None if found is None else found.rate_per_s

    def _at(self, curve: ServiceCurve, shape: tuple[int, int]) -> dict[str, Any]:
        """Returns performance data with the same number of rows for any length of answers. With
        another `atTokens`, the optimizer would assume more rows for shorter answers."""
        _, out_tokens = shape
        return {**self.perf, "atTokens": out_tokens, "serviceCurve": curve.as_json()}


@dataclass(frozen=True, slots=True)
class Fitted:
    """The fit of a server. `by_loops` uses closed loops only, as for any server; `moments` uses the
    server's own steps if it counts them."""

    fit: Fit
    by_loops: Moments
    moments: Moments
    predictor: Predictor

    def at_moments(self, points: Sequence[LoadPoint], moments: Moments | None = None) -> list[At]:
        """Returns the rows with their curves, whose speed error is that of a mean over the rows."""
        moments = moments or self.moments
        error = moments.speeds.error / len(points) ** 0.5
        return [(point, replace(moments.at(point), speed_error=error)) for point in points]


def fitted(plan: LoopPlan, measured: Measured, optimizer: OptimizerApi, cuts: Cuts) -> Fitted:
    """Fits the measured rows. Raises Unfit."""
    rows = measured.rows
    closed = rows.closed()
    loops = closed_loops(closed, plan.places)
    # More rows than a loop has users, so that no request waits, even with slower simulated steps.
    perf = {
        "name": plan.shape.model,
        "acc": plan.accelerator,
        "maxBatchSize": 2 * plan.places,
    }
    predictor = Predictor(optimizer, perf)

    def moments(fit: Fitter) -> Moments | None:
        loops = [*closed, *rows.volleys()]
        return fit_moments(predictor.predict_requests, fit, cuts.of, loops, plan.places)

    by_loops = moments(lambda outside: fit_drifting(loops, outside))
    if by_loops is None:
        raise Unfit("too few closed loops of different numbers of users were measured")
    course = steps_course(measured.readings)
    by_steps = course and moments(lambda outside: fit_in_course(loops, course, outside))
    left_out = {*rows.checked, *rows.disturbed}
    fit = fit_run(
        measured.run,
        plan.shape.model,
        left_out=left_out,
        max_batch_size=plan.places,
        speed=by_loops.curve,
    )
    perf = fit.perf_data(plan.shape.model, plan.accelerator)
    return Fitted(fit, by_loops, by_steps or by_loops, Predictor(optimizer, perf))


def prove(
    plan: LoopPlan, measured: Measured, optimizer: OptimizerApi, cuts: Cuts = NO_CUTS
) -> LoopResult:
    """Fits the rows and checks predictions. Raises Unfit and OptimizerUnusable."""
    found = fitted(plan, measured, optimizer, cuts)
    rows, predictor = measured.rows, found.predictor
    of_load = _by_share(plan, rows)
    of_moments = [(share, found.at_moments(parts)) for share, parts in of_load]
    checks = [_check(predictor.predict_requests, *each) for each in of_moments]
    of_loops = [
        (share, found.at_moments(parts, found.by_loops))
        for share, parts in (of_load if found.moments is not found.by_loops else [])
    ]
    rates = [_capacity(predictor, found.at_moments(rows.crowds(plan)))]
    middle = found.at_moments([part for _, parts in of_load[1:3] for part in parts])
    if (within := _within_level(predictor, checks, middle)) is not None:
        rates.append(within)
    return LoopResult(
        fit=found.fit,
        speeds=found.moments.speeds,
        checks=tuple(checks),
        ttft_per_speed=tuple(
            fmean(_ttft_per_speed(predictor.predict_requests, *at) for at in moments)
            for _, moments in of_moments
        ),
        by_rate=tuple(_check(predictor.predict_rate, *each) for each in of_moments),
        by_loops=tuple(_check(predictor.predict_requests, *each) for each in of_loops),
        rates=tuple(rates),
        level=Slo(itl_ms=_level_ms(checks)),
        num_rows=len(rows.points),
        num_disturbed=len(rows.disturbed),
    )


def _by_share(plan: LoopPlan, rows: Rows) -> list[tuple[float, list[LoadPoint]]]:
    """Returns the rows of each load with its share of the capacity, ascending."""
    of_load: dict[Workload, list[LoadPoint]] = {}
    for row in rows.checked:
        of_load.setdefault(rows.points[row].load, []).append(rows.points[row])
    loads = sorted(of_load, key=lambda load: load.qps or 0.0)
    return [(share, of_load[load]) for share, load in zip(plan.check_shares, loads, strict=False)]


def _check(ask: Ask, share: float, moments: Sequence[At]) -> Check:
    predictions = [ask(*at) for at in moments]
    parts = [part for part, _ in moments]
    weights = [float(len(part.measured)) for part in parts]
    records = [record for part in parts for record in part.measured]
    seconds = [part.to_s - part.from_s for part in parts]
    width = MAX_HALF_WIDTH if share <= NARROW_UP_TO else None

    def compared(name: str, allowed: float, measured: Interval) -> Compared:
        values = [getattr(each, f"{name.lower()}_ms") for each in predictions]
        bounds = [getattr(each, f"{name.lower()}_bounds_ms") for each in predictions]
        low_high = None
        if None not in bounds:
            low, high = (fmean(side, weights) for side in zip(*bounds, strict=True))
            low_high = (low, high)
        return Compared(f"{name}, ms", fmean(values, weights), low_high, measured, allowed, width)

    served = [_answered_per_s(each, part) for each, part in zip(predictions, parts, strict=True)]
    answered = over_repeats([part.throughput_per_s for part in parts])
    return Check(
        share=share,
        rate_per_s=fmean([part.offered_per_s for part in parts], seconds),
        methods=tuple(sorted({each.method or "lines" for each in predictions})),
        ttft=compared("TTFT", MAX_TTFT_ERROR, mean_within_run(TTFT.values(records))),
        itl=compared("ITL", MAX_ITL_ERROR, mean_within_run(ITL.values(records))),
        answered=Compared("answered, requests/s", fmean(served), None, answered, MAX_RATE_ERROR),
    )


def _answered_per_s(prediction: Prediction, part: LoadPoint) -> float:
    """Returns the requests of a row that would end per second while its load was held, counted like
    `throughput_per_s`, if each took the predicted mean time."""
    ended = sum(
        part.from_s
        <= record.scheduled_s
        + (prediction.ttft_ms + prediction.itl_ms * (output_tokens(record) - 1)) / 1000
        < part.to_s
        for record in succeeded(part.all_records)
    )
    return min(ended / (part.to_s - part.from_s), prediction.max_rate_per_s)


def _ttft_per_speed(ask: Ask, part: LoadPoint, curve: ServiceCurve) -> float:
    """Returns the elasticity of TTFT to all times of the curve."""
    slow, fast = (
        ask(part, at_speed(exact(curve), slowness)).ttft_ms
        for slowness in (OTHERWISE, 1 / OTHERWISE)
    )
    return math.log(slow / fast) / (2 * math.log(OTHERWISE))


def _capacity(predictor: Predictor, crowds: Sequence[At]) -> Compared:
    predicted = [predictor.max_rate_per_s(point, curve, Slo()) or 0.0 for point, curve in crowds]
    loops = closed_loops([point for point, _ in crowds], None)
    measured = over_repeats([rate_per_s(loop) for loop in loops])
    return Compared("capacity, requests/s", fmean(predicted), None, measured, MAX_RATE_ERROR)


def _within_level(
    predictor: Predictor, checks: Sequence[Check], middle: Sequence[At]
) -> Compared | None:
    """Compares the highest rate that keeps the mean ITL at the level of the `middle` checks."""
    level_ms = _level_ms(checks)
    points = [(check.rate_per_s, check.itl.measured.value) for check in checks]
    crossed_per_s = crossing_per_s(points, level_ms)
    slo = Slo(itl_ms=level_ms)
    rates = [rate for at in middle if (rate := predictor.max_rate_per_s(*at, slo)) is not None]
    if crossed_per_s is None or not rates:
        return None
    measured = Interval(crossed_per_s, -np.inf, np.inf)
    name = f"requests/s with mean ITL ≤ {level_ms:.2f} ms"
    return Compared(name, fmean(rates), None, measured, MAX_RATE_ERROR)


def _level_ms(checks: Sequence[Check]) -> float:
    return fmean(check.itl.measured.value for check in checks[1:3])


def crossing_per_s(points: Iterable[tuple[float, float]], level: float) -> float | None:
    """Returns the rate at which a mean crosses a level, on straight lines between points of (rate,
    mean); None if it does not."""
    for (low, below), (high, above) in pairwise(sorted(points)):
        if below <= level < above:
            return low + (high - low) * (level - below) / (above - below)
    return None
