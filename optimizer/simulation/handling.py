"""What a server does for a request before it can be queued: it reads, parses and encodes it.

Requests that come while others are handled share one processor, or an interpreter's lock, with
them: each gets an equal part (processor sharing, Kleinrock, JACM 14, 1967). Pure: any thread.
"""

import math
from collections import deque

import numpy as np

from optimizer.model.latency import FloatArray


def waits_ms(arrival_ms: FloatArray, handling_ms: float) -> FloatArray:
    """Returns how much longer handling took each request than one that is alone, given ascending
    arrivals. All have as much to be done, so that they are done in the order they came in."""
    if not handling_ms or np.diff(arrival_ms).min(initial=math.inf) >= handling_ms:
        return np.zeros(arrival_ms.size)
    done_ms = []
    until: deque[float] = deque()  # the share of each that is to be done, on a clock of shares
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
