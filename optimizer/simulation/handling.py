"""Simulates the handling of requests before they are queued: reading, parsing, encoding.

Requests that are handled at the same time share one processor, or an interpreter's lock, in equal
parts (processor sharing, Kleinrock, JACM 14, 1967). Pure: any thread.
"""

import math
from collections import deque

import numpy as np

from optimizer.model.latency import FloatArray


def waits_ms(arrival_ms: FloatArray, handling_ms: float) -> FloatArray:
    """Returns how much longer the handling of each request took than for a single one, given
    ascending arrivals. All have equal work, so they finish in the order of arrival."""
    if not handling_ms or np.diff(arrival_ms).min(initial=math.inf) >= handling_ms:
        return np.zeros(arrival_ms.size)
    done_ms = []
    until: deque[float] = deque()  # when each finishes, on a clock of shares
    clock_ms = now_ms = 0.0
    for next_ms in [*arrival_ms.tolist(), math.inf]:
        while until and (end_ms := now_ms + (until[0] - clock_ms) * len(until)) <= next_ms:
            clock_ms, now_ms = until.popleft(), end_ms
            done_ms.append(end_ms)
        if until:
            clock_ms += (next_ms - now_ms) / len(until)
        now_ms = next_ms
        until.append(clock_ms + handling_ms)
    return np.maximum(np.array(done_ms) - arrival_ms - handling_ms, 0.0)
