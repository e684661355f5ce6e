"""Where a load curve bends and where it ends. Pure: any thread."""

from collections.abc import Sequence

from benchmarking.curve import LoadPoint

MIN_GAIN = 1.05  # more tokens/s than the last point, where concurrency grew
MIN_SERVED = 0.95  # requests answered of those that came due, while the load was held


def knee(points: Sequence[LoadPoint]) -> LoadPoint | None:
    """The point of greatest power, throughput over latency (Kleinrock, 1979).

    Below it more load buys much throughput for little latency, above it the reverse. None where
    nothing was answered.
    """
    answered = [point for point in points if point.e2e is not None]
    return max(answered, key=_power, default=None)


def is_saturated(point: LoadPoint, previous: LoadPoint | None) -> bool:
    """Open loop: requests come due faster than they are answered. Closed loop: more of them in
    flight than at the previous point gave less than 5 % more tokens."""
    if point.load.qps is not None:
        return point.throughput_per_s < MIN_SERVED * point.offered_per_s
    return previous is not None and point.tokens_per_s < MIN_GAIN * previous.tokens_per_s


def _power(point: LoadPoint) -> float:
    assert point.e2e is not None
    return point.throughput_per_s / point.e2e.mean.value
