"""Fits a server's curve, and scales it to the speed of each row of a loop."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarking.analysis.closed_loops import least_squares
from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.latency import mean_tokens
from benchmarking.analysis.predict import Prediction
from benchmarking.analysis.service_curve import CurvePoint, Points, ServiceCurve, at
from lab.benches.loop.plan import is_volley
from lab.kit.curves import at_speed, exact
from lab.kit.moments import SpeedOfMoments

TTFT_ERROR = 0.1  # relative error of a simulated TTFT, due to errors of the curve
SLOWER = 1.05  # factor on times, to find a simulation's sensitivity to speed
OVERHEAD_ROUNDS = 3  # each fits the overhead given the curve, then the curve given the overhead
FIRST_HANDLING_MS = 2.0  # handling time of a request before any is known
MORE_HANDLING_MS = 0.5  # added to find a simulation's sensitivity to handling

Ask = Callable[[LoadPoint, ServiceCurve], Prediction]
Fitter = Callable[[Points | None], tuple[ServiceCurve, SpeedOfMoments] | None]
"""Takes the overhead outside of steps, if known. Returns a curve and its speeds."""


@dataclass(frozen=True, slots=True)
class Moments:
    """A server's curve at slowness 1, and its speeds."""

    curve: ServiceCurve
    speeds: SpeedOfMoments

    def at(self, point: LoadPoint) -> ServiceCurve:
        """Returns the curve at a row's speed, without the error of the speed."""
        in_tokens, out_tokens = mean_tokens(point.measured)
        curve = self.curve.of_requests(max(in_tokens - 1, 0.0), out_tokens)
        return replace(
            at_speed(curve, self.slowness(point)),
            slowness=self.speeds.course(*_from_to_s(point)),
        )

    def slowness(self, point: LoadPoint) -> float:
        """Returns the mean slowness of a row."""
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
    loops: Sequence[LoadPoint],
    places: int,
) -> Moments | None:
    """Returns a server's curve and speeds from closed loops, or None for too few. `cut` adds how
    the server cuts prompts. `loops` include users who ask at once. Raises Unfit."""
    found = fit(None)
    if found is None:
        return None
    handling_ms = FIRST_HANDLING_MS
    for _ in range(OVERHEAD_ROUNDS):
        moments = Moments(cut(replace(found[0], handling_ms=handling_ms)), found[1])
        seen = [_beyond(ask, point, moments) for point in loops if _is_within(point, places)]
        overhead = _overhead([each for each in seen if not each.is_volley])
        handling_ms = _handling_ms([each for each in seen if each.is_volley], overhead, handling_ms)
        found = fit(overhead) or found
    return Moments(cut(replace(found[0], handling_ms=handling_ms)), found[1])


def _is_within(point: LoadPoint, places: int) -> bool:
    return (point.load.concurrency or math.inf) <= places and point.ttft is not None


@dataclass(frozen=True, slots=True)
class _Beyond:
    """The excess of a closed loop's TTFT over a simulation of the same requests, in ms.
    `of_handling` is the change of the simulated TTFT per ms of handling."""

    users: int
    is_volley: bool
    slowness: float
    ms: float
    error_ms: float
    of_handling: float


def _beyond(ask: Ask, point: LoadPoint, moments: Moments) -> _Beyond:
    """Returns the excess of a loop. Its error grows with the simulation's sensitivity to speed:
    near capacity, a slightly lower speed makes a long queue, which is not overhead."""
    bare = exact(replace(moments.at(point), overhead=None))
    said_ms = ask(point, bare).ttft_ms
    slower_ms = ask(point, at_speed(bare, SLOWER)).ttft_ms
    of_handling = 0.0
    if is_volley(point.load):
        longer = replace(bare, handling_ms=bare.handling_ms + MORE_HANDLING_MS)
        of_handling = (ask(point, longer).ttft_ms - said_ms) / MORE_HANDLING_MS
    assert point.ttft is not None
    return _Beyond(
        users=point.load.concurrency or 1,
        is_volley=is_volley(point.load),
        slowness=moments.slowness(point),
        ms=point.ttft.mean.value - said_ms,
        error_ms=max(slower_ms - said_ms, TTFT_ERROR * said_ms),
        of_handling=of_handling,
    )


def _overhead(loops: Sequence[_Beyond]) -> Points:
    """Returns the overhead by number of users, on a straight line that never falls."""
    weights = np.array([each.slowness / each.error_ms for each in loops])
    design = np.stack((weights, weights * [each.users for each in loops]), axis=1)
    left = np.array([each.ms / each.error_ms for each in loops])
    (at_none, of_each), (error, error_of_each) = least_squares(design, left)
    return tuple(
        CurvePoint(n, float(at_none + of_each * n), math.hypot(error, error_of_each * n))
        for n in sorted({each.users for each in loops})
    )


def _handling_ms(volleys: Sequence[_Beyond], overhead: Points, known_ms: float) -> float:
    """Returns the handling time of a request, given the assumed `known_ms`. Requests that come at
    once wait for each other, and have the overhead of the requests before them."""
    if not volleys:
        return 0.0
    weights = np.array([each.slowness * each.of_handling / each.error_ms for each in volleys])
    in_service = [(1 + each.users) / 2 for each in volleys]
    left_ms = [
        each.ms - each.slowness * at(overhead, rows)
        for each, rows in zip(volleys, in_service, strict=True)
    ]
    left = np.array(left_ms) / [each.error_ms for each in volleys]
    return max(known_ms + float(weights @ left) / max(float(weights @ weights), 1e-300), 0.0)
