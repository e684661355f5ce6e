"""The curve of a server at the speed of each row of a loop."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarking.analysis.closed_loops import least_squares
from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.latency import mean_tokens
from benchmarking.analysis.moments import SpeedOfMoments
from benchmarking.analysis.predict import Prediction
from benchmarking.analysis.service_curve import CurvePoint, Points, ServiceCurve

TTFT_ERROR = 0.1  # of a simulated one, by what a curve is wrong of
SLOWER = 1.05  # times, to see what a simulation makes of it
OVERHEAD_ROUNDS = 2  # of what first tokens take beyond a curve, and of the curve given that

Ask = Callable[[LoadPoint, ServiceCurve], Prediction]
Fitter = Callable[[Points | None], tuple[ServiceCurve, SpeedOfMoments] | None]
"""A curve, given what requests wait for outside of steps if that is known, and its speeds."""


@dataclass(frozen=True, slots=True)
class Moments:
    """`curve`: at slowness 1."""

    curve: ServiceCurve
    speeds: SpeedOfMoments

    def at(self, point: LoadPoint) -> ServiceCurve:
        """Returns that of a row, without the error of its speed."""
        in_tokens, out_tokens = mean_tokens(point.measured)
        curve = self.curve.of_requests(max(in_tokens - 1, 0.0), out_tokens)
        return replace(
            curve.at_speed(self.slowness(point), 0.0),
            slowness=self.speeds.course(*_from_to_s(point)),
        )

    def slowness(self, point: LoadPoint) -> float:
        """Returns that of a row, on average."""
        return self.speeds.slowness(*_from_to_s(point))


def _from_to_s(point: LoadPoint) -> tuple[float, float]:
    return (
        min(record.scheduled_s for record in point.all_records),
        max(record.end_s for record in point.all_records),
    )


def fit_moments(
    ask: Ask,
    fit: Fitter,
    cut: Callable[[ServiceCurve], ServiceCurve],
    closed: Sequence[LoadPoint],
    places: int,
) -> Moments | None:
    """Returns what closed loops say of a server, whose curves are `cut` as it cuts prompts; None
    for too few of them. Raises Unfit."""
    found = fit(None)
    if found is None:
        return None
    for _ in range(OVERHEAD_ROUNDS):
        moments = Moments(cut(found[0]), found[1])
        found = fit(_overhead(ask, closed, places, moments)) or found
    return Moments(cut(found[0]), found[1])


def _overhead(ask: Ask, closed: Sequence[LoadPoint], places: int, moments: Moments) -> Points:
    """Returns what first tokens of closed loops took beyond a simulation of the same requests, by
    users: on a straight line that never falls.

    A loop counts the less the more its simulation depends on the machine's speed: near capacity a
    slightly lower one makes a long queue, which is no overhead.
    """
    loops = []
    for point in closed:
        users = point.load.concurrency
        if users is None or users > places or point.ttft is None:
            continue
        bare = replace(moments.at(point), overhead=None).exact()
        said_ms = ask(point, bare).ttft_ms
        slower_ms = ask(point, bare.at_speed(SLOWER, 0.0)).ttft_ms
        error_ms = max(slower_ms - said_ms, TTFT_ERROR * said_ms)
        loops.append((users, point.ttft.mean.value - said_ms, error_ms, moments.slowness(point)))
    of_users, beyond_ms, errors_ms, slowness = np.array(loops).T
    design = np.stack((slowness / errors_ms, of_users * slowness / errors_ms), axis=1)
    (at_none, of_each), (error, error_of_each) = least_squares(design, beyond_ms / errors_ms)
    return tuple(
        CurvePoint(n, float(at_none + of_each * n), math.hypot(error, error_of_each * n))
        for n in sorted({users for users, *_ in loops})
    )
