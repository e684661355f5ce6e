"""Service curves of closed loops whose answers differ in length.

Their users begin independently. With the symbols of `analysis.closed_loops`, m of n users are in
service; the others are outside of steps, because connections are read and tokens sent. Then

    m = 1 + (n - 1) (1 - overhead / end to end),
    end to end = overhead(m) + m c(m) w + o a(m),    TTFT of one user = overhead(1) + c(1) w + a(1).

These equations give one overhead for all n. It grows with n, because users share the processor and
the interpreter; the caller finds out how much, because their TTFT exceeds that of a simulation of
the same requests.
Pure: any thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from benchmarking.analysis.closed_loops import Loop, drift, fit_loops, prompts_differ
from benchmarking.analysis.service_curve import LEAST_MS, Points, ServiceCurve, at

MOST_OUTSIDE = 0.9  # largest share of a user's time outside service
ROUNDS = 3  # each finds requests in service from the overhead, then the overhead from these


def fit_mixed(loops: Sequence[Loop], overhead: Points | None = None) -> ServiceCurve | None:
    """Returns the curve by rows in service; None for fewer than three numbers of users. `overhead`
    is by users, if known. Raises Unfit if no step takes time."""
    known_ms = [at(overhead, loop.users) if overhead else 0.0 for loop in loops]
    common_ms, curve = 0.0, None
    for _ in range(ROUNDS):
        inside = [
            _inside(loop, ms, ms + common_ms) for loop, ms in zip(loops, known_ms, strict=True)
        ]
        curve = fit_loops(inside, has_overhead=overhead is None and prompts_differ(loops))
        common_ms = curve.overhead[0].ms if curve and curve.overhead else 0.0
    if curve is None:
        return None
    in_service = {
        n: fmean(loop.in_service for loop in inside if loop.users == n)
        for n in {loop.users for loop in loops}
    }
    return replace(
        curve,
        decode=_moved(curve.decode, in_service),
        prompt_token=_moved(curve.prompt_token, in_service),
        overhead=_moved(overhead, in_service) if overhead else curve.overhead,
        speed_error=drift(loops),
    )


def rate_per_s(loop: Loop) -> float:
    """Departures, by Little's law. Counts in a window would be wrong if users end together."""
    return 1000 * loop.users / loop.e2e_ms


def _inside(loop: Loop, known_ms: float, outside_ms: float) -> Loop:
    """Returns a loop without its known overhead, and with the requests that are in service if each
    is outside of service for `outside_ms`."""
    share = 1 - min(outside_ms / loop.e2e_ms, MOST_OUTSIDE)
    return replace(
        loop,
        e2e_ms=loop.e2e_ms - known_ms,
        ttft_ms=loop.ttft_ms - known_ms,
        in_service=1 + (loop.users - 1) * share,
    )


def _moved(points: Points, in_service: Mapping[int, float]) -> Points:
    """Returns points by rows in service, from points by users. The last line is extrapolated."""
    rows, ms = [in_service[point.rows] for point in points], [point.ms for point in points]
    slope = (ms[-1] - ms[-2]) / max(rows[-1] - rows[-2], 1.0) if len(ms) > 1 else 0.0
    beyond = [max(point.rows - rows[-1], 0.0) for point in points]
    on_line = [
        float(np.interp(point.rows, rows, ms)) + slope * more
        for point, more in zip(points, beyond, strict=True)
    ]
    least_ms = min(LEAST_MS, *ms)
    return tuple(replace(p, ms=max(on, least_ms)) for p, on in zip(points, on_line, strict=True))
