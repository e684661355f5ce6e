"""Chooses the next load to try: sweeps to saturation, and searches for the highest rate in an SLO.

Each plan is a generator: it yields a load, is sent the measured point, and at the end returns its
result. It uses no network and no clock, so that it can be tested on any curve.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.fit import MIN_POINTS
from benchmarking.analysis.knee import Saturation, brings_no_more, saturation
from benchmarking.records import Workload

MAX_PROBES = 12
STEP = 2.0  # factor between probes, until the limit lies between two of them
TOLERANCE = 0.05  # relative gap of these two at which the search ends
MIN_ARRIVALS = 10  # least requests of an open loop; fewer show nothing


@dataclass(frozen=True, slots=True)
class Shape:
    """The model and the token counts of every request of a sweep."""

    model: str
    input_tokens: int
    output_tokens: int

    def at_concurrency(self, concurrency: int, requests_each: int) -> Workload:
        """Returns a closed loop in which every user sends `requests_each` requests."""
        return self._load(concurrency * requests_each, concurrency, None)

    def at_rate(self, qps: float, duration_s: float) -> Workload:
        """Returns an open loop of Poisson arrivals for `duration_s`, or of MIN_ARRIVALS if more."""
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
    """How a sweep ended: `saturated` is its last point, if the server was saturated there.
    `too_short` are points at lower rates whose rows were too short to tell."""

    saturated: LoadPoint | None
    too_short: tuple[LoadPoint, ...] = ()


def sweep_concurrency(
    shape: Shape, max_concurrency: int, requests_each: int
) -> Generator[Workload, LoadPoint, SweepEnd]:
    """Yields closed loops of 1, 2, 4, ... users, up to `max_concurrency` or until more users bring
    no more tokens. It yields at least as many loops as a fit needs."""
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
    rate, until requests come due faster than they are answered. A row that is too short to tell
    does not end the sweep."""
    requests_each = 4
    closed = yield shape.at_concurrency(max_concurrency, requests_each)
    if closed.throughput_per_s == 0:
        return SweepEnd(None)  # without a rate there are no shares to offer
    too_short: list[LoadPoint] = []
    for share in shares:
        point = yield shape.at_rate(share * closed.throughput_per_s, duration_s)
        found = saturation(point.measured)
        if found is Saturation.SATURATED:
            return SweepEnd(point, tuple(too_short))
        if found is Saturation.TOO_SHORT:
            too_short.append(point)
    return SweepEnd(None, tuple(too_short))


def search_max_rate(
    shape: Shape,
    is_met: Callable[[LoadPoint], bool],
    start_qps: float,
    duration_s: float,
) -> Generator[Workload, LoadPoint, tuple[LoadPoint | None, LoadPoint | None]]:
    """Yields open loops from `start_qps` up or down by factors of STEP, until the limit lies
    between two probes. Then it halves the gap, on a logarithmic scale, down to TOLERANCE. Gives up
    after MAX_PROBES, and below the rate of MIN_ARRIVALS in `duration_s`. Returns the points at the
    highest rate that met the service levels, and at the lowest that did not."""
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
    return met, missed


def _qps(point: LoadPoint) -> float:
    assert point.load.qps is not None
    return point.load.qps
