"""The knee of a load curve, and its saturation. Pure: any thread."""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.latency import E2E
from benchmarking.records import RequestRecord
from common.numerics import FloatArray

MIN_GAIN = 1.05  # more tokens/s than the last point, where concurrency grew
NOISE = 2.33  # standard deviations that chance exceeds once in a hundred rows
MIN_REQUESTS = 100  # with fewer, most servers at 1.5 times their capacity seem to keep up
MIN_LATENCIES = 4  # for which a load is held before it no longer fills the server


class Saturation(StrEnum):
    """Saturation of a server under an open loop."""

    KEEPS_UP = "keeps up"
    SATURATED = "saturated"
    TOO_SHORT = "too short to tell"


def knee(points: Sequence[LoadPoint]) -> LoadPoint | None:
    """The point of greatest power, throughput over latency (Kleinrock, 1979). Below it more load
    buys much throughput for little latency. None where nothing was answered."""
    answered = [point for point in points if point.e2e is not None]
    return max(answered, key=_power, default=None)


def brings_no_more(point: LoadPoint, previous: LoadPoint | None) -> bool:
    """Returns whether a closed loop's added users gave less than 5 % more tokens."""
    return previous is not None and point.tokens_per_s < MIN_GAIN * previous.tokens_per_s


def saturation(due: Sequence[RequestRecord]) -> Saturation:
    """Returns whether an open loop's requests came faster than answers, beyond chance.

    Latency grows while a queue does. The means of the first and the last quarter of the row are
    compared; they may differ by what n Poisson arrivals vary, sqrt(n) of the mean wait between
    them, and by the spread of latencies. A server at 90 % of what it can do exceeds NOISE times
    that in about 1 % of rows. While the load fills the server latencies grow too: in a row of a
    few latencies they must do so faster than time passes. As many failures count as well.
    """
    if sum(record.failure is not None for record in due) > NOISE * len(due) ** 0.5:
        return Saturation.SATURATED
    quarter = len(due) // 4
    first_s, last_s = _latencies_s(due[:quarter]), _latencies_s(due[-quarter:])
    if len(due) < MIN_REQUESTS or not first_s.size or not last_s.size:
        return Saturation.TOO_SHORT
    held_s = due[-1].scheduled_s - due[0].scheduled_s
    is_filling = held_s < MIN_LATENCIES * first_s.mean()
    spread = first_s.var() / first_s.size + last_s.var() / last_s.size
    chance_s = NOISE * (held_s**2 / len(due) + spread) ** 0.5
    if last_s.mean() - first_s.mean() > chance_s + (held_s if is_filling else 0.0):
        return Saturation.SATURATED
    return Saturation.TOO_SHORT if is_filling else Saturation.KEEPS_UP


def _latencies_s(records: Sequence[RequestRecord]) -> FloatArray:
    return np.array(E2E.values(records)) / 1000


def _power(point: LoadPoint) -> float:
    assert point.e2e is not None
    return point.throughput_per_s / point.e2e.mean.value
