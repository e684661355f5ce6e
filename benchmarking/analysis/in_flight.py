"""Computes the exact number of requests in flight at any moment, from their raw times."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from benchmarking.analysis.latency import itl_s
from benchmarking.records import RequestRecord
from common.numerics import FloatArray

LAST_PART = 0.1  # share of the time from an answer's first token to its last


class InFlight:
    """The number of requests that were sent and have not ended, as a step function. Immutable.

    A request ends with its last token, or when it fails. Pass every record of the time, including
    the warm-up and failures, because the server served them all.
    """

    def __init__(self, records: Iterable[RequestRecord]) -> None:
        records = list(records)
        self._sent_s = np.sort([record.sent_s for record in records])
        self._ended_s = np.sort([_ended_s(record) for record in records])

    def at(self, times_s: npt.ArrayLike) -> FloatArray:
        """Returns the number in flight at each time, including requests sent at that moment."""
        sent = np.searchsorted(self._sent_s, times_s, side="right")
        ended = np.searchsorted(self._ended_s, times_s, side="right")
        return np.asarray(sent - ended, dtype=np.float64)

    def mean(self, from_s: float, to_s: float) -> float:
        """Returns the mean over time: the requests' seconds in the window / its length."""
        sent = np.clip(self._sent_s, from_s, to_s)
        ended = np.clip(self._ended_s, from_s, to_s)
        return float((ended.sum() - sent.sum()) / (to_s - from_s))

    def max(self) -> int:
        return int(self.at(self._sent_s).max(initial=0))


def max_decoding(records: Iterable[RequestRecord]) -> int:
    """Returns the most answers that were ever under way at once: begun, and not in their last part.
    The last part is at least one step, in which the next request may have the place already."""
    begun = [record for record in records if record.chunk_s]
    first_s = np.sort([record.chunk_s[0] for record in begun])
    last_s = np.sort([record.chunk_s[-1] - _last_part_s(record) for record in begun])
    num_begun = np.searchsorted(first_s, first_s, side="right")
    num_ended = np.searchsorted(last_s, first_s, side="left")
    return int((num_begun - num_ended).max(initial=0))


def admitted_s(records: Iterable[RequestRecord], places: int) -> list[float]:
    """Returns when each request, in the order of sending, got one of a server's places. The server
    may report it; otherwise requests get places first come, first served, and at once while fewer
    are in service."""
    free_s: list[float] = []  # ascending times at which taken places become free
    admitted = []
    for record in sorted(records, key=lambda record: record.sent_s):
        start_s = record.sent_s
        if len(free_s) >= places:
            start_s = max(start_s, free_s.pop(0))
        queue_s = record.server.queue_s
        admitted.append(start_s if queue_s is None else record.sent_s + queue_s)
        free_s.append(max(_ended_s(record), start_s))
        free_s.sort()
    return admitted


def _last_part_s(record: RequestRecord) -> float:
    return max(itl_s(record) or 0.0, LAST_PART * (record.chunk_s[-1] - record.chunk_s[0]))


def _ended_s(record: RequestRecord) -> float:
    return record.end_s if record.failure else record.chunk_s[-1]
