"""The next load to try: sweeps to saturation, and searches for the highest rate within an SLO.

Each plan is a generator: it yields a load, is sent the point that was measured, and returns its
finding. It knows no network and no clock, so that it can be tested on any curve.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.fit import MIN_POINTS
from benchmarking.analysis.knee import Saturation, brings_no_more, saturation
from benchmarking.records import Workload

MAX_PROBES = 12
STEP = 2.0  # between probes, until the limit lies between two
TOLERANCE = 0.05  # relative gap of both, at which the search ends
MIN_ARRIVALS = 10  # requests in an open loop; fewer say nothing


@dataclass(frozen=True, slots=True)
class Shape:
    """Model and token counts of every request of a sweep."""

    model: str
    input_tokens: int
    output_tokens: int

    def at_concurrency(self, concurrency: int, requests_each: int) -> Workload:
        """A closed loop in which every user sends `requests_each`."""
        return self._load(concurrency * requests_each, concurrency, None)

    def at_rate(self, qps: float, duration_s: float) -> Workload:
        """An open loop of Poisson arrivals for about `duration_s`, at least MIN_ARRIVALS."""
        return self._load(max(MIN_ARRIVALS, round(qps * duration_s)), None, qps)

    def _load(self, num_requests: int, concurrency: int | None, qps: float | None) -> Workload:
        return Workload(
            self.model,
            self.input_tokens,
            self.output_tokens,
            num_requests,
            concurrency=concurrency,
            qps=qps,
            qps_distribution="exponential" if qps is not None else "constant",
        )


@dataclass(frozen=True, slots=True)
class SweepEnd:
    """`saturated`: where the sweep ended. `too_short`: rates below whose rows could not tell."""

    saturated: LoadPoint | None
    too_short: tuple[LoadPoint, ...] = ()


def sweep_concurrency(
    shape: Shape, max_concurrency: int, requests_each: int
) -> Generator[Workload, LoadPoint, SweepEnd]:
    """1, 2, 4, ... users until more of them bring no more tokens, at most `max_concurrency`.

    A server that is full with two users is asked on until the rows suffice for a fit."""
    concurrency, previous, num_rows = 1, None, 0
    while concurrency <= max_concurrency:
        point = yield shape.at_concurrency(concurrency, requests_each)
        if point.error_share == 1:
            break
        num_rows += 1
        if num_rows >= MIN_POINTS and brings_no_more(point, previous):
            return SweepEnd(point)
        concurrency, previous = 2 * concurrency, point
    return SweepEnd(None)


def sweep_rate(
    shape: Shape, max_concurrency: int, shares: Sequence[float], duration_s: float
) -> Generator[Workload, LoadPoint, SweepEnd]:
    """Yields a closed loop of `max_concurrency` users, then open loops at ascending `shares` of its
    rate, until requests come due faster than they are answered. Rows too short to tell end nothing.
    """
    requests_each = 4
    closed = yield shape.at_concurrency(max_concurrency, requests_each)
    if closed.throughput_per_s == 0:
        return SweepEnd(None)  # there is no rate to offer shares of
    too_short: list[LoadPoint] = []
    for share in shares:
        point = yield shape.at_rate(share * closed.throughput_per_s, duration_s)
        found = saturation(point.measured)
        if found is Saturation.SATURATED:
            return SweepEnd(point, tuple(too_short))
        if found is Saturation.TOO_SHORT:
            too_short.append(point)
    return SweepEnd(None, tuple(too_short))


@dataclass(frozen=True, slots=True)
class MaxLoad:
    """`met`: at the highest rate found to keep its levels; `missed`: the lowest found not to."""

    met: LoadPoint | None
    missed: LoadPoint | None


def search_max_rate(
    shape: Shape,
    is_met: Callable[[LoadPoint], bool],
    start_qps: float,
    duration_s: float,
) -> Generator[Workload, LoadPoint, MaxLoad]:
    """Goes from `start_qps` up or down by factors of STEP until the limit lies between two
    probes, then halves that gap, on a logarithmic scale, down to TOLERANCE of the rate. Gives up
    after MAX_PROBES, and below the rate that brings MIN_ARRIVALS in `duration_s`."""
    met: LoadPoint | None = None
    missed: LoadPoint | None = None
    qps = start_qps
    for _ in range(MAX_PROBES):
        point = yield shape.at_rate(qps, duration_s)
        if is_met(point):
            met = point
        else:
            missed = point
        if met is None:
            qps /= STEP
            if qps * duration_s < MIN_ARRIVALS:
                break
        elif missed is None:
            qps *= STEP
        else:
            low, high = _qps(met), _qps(missed)
            if high <= low * (1 + TOLERANCE):
                break
            qps = (low * high) ** 0.5
    return MaxLoad(met, missed)


def _qps(point: LoadPoint) -> float:
    assert point.load.qps is not None
    return point.load.qps
