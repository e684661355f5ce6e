"""Finds the knee of a load curve, and whether a load saturates a server. Pure: any thread."""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.latency import E2E
from benchmarking.records import RequestRecord
from common.numerics import FloatArray

MIN_GAIN = 1.05  # a gain in tokens/s by less than this factor counts as none
NOISE = 2.33  # standard deviations that chance exceeds in one of a hundred rows
MIN_REQUESTS = 100  # with fewer, most servers at 1.5 times their capacity seem to keep up
MIN_LATENCIES = 4  # a load fills the server until it was held for this many latencies


class Saturation(StrEnum):
    """Whether a server keeps up with an open loop."""

    KEEPS_UP = "keeps up"
    SATURATED = "saturated"
    TOO_SHORT = "too short to tell"


def knee(points: Sequence[LoadPoint]) -> LoadPoint | None:
    """Returns the point with the greatest power, throughput / latency (Kleinrock, 1979). Below it,
    more load gains much throughput for little latency. None if nothing was answered."""
    answered = [point for point in points if point.e2e is not None]
    return max(answered, key=_power, default=None)


def brings_no_more(point: LoadPoint, previous: LoadPoint | None) -> bool:
    """Returns whether a closed loop's additional users brought less than 5 % more tokens/s."""
    return previous is not None and point.tokens_per_s < MIN_GAIN * previous.tokens_per_s


def saturation(due: Sequence[RequestRecord]) -> Saturation:
    """Returns whether an open loop's requests came faster than answers, beyond chance.

    Latency grows while a queue grows, so it compares the mean latencies of the row's first and last
    quarter. By chance they differ as n Poisson arrivals do, by sqrt(n) mean waits, and by the
    spread of latencies. A server at 90 % of its capacity exceeds NOISE times that in about 1 % of
    rows. Latencies also grow while the load fills the server, so in a row of only a few latencies
    they must grow faster than time passes. A similar number of failures also saturates.
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
