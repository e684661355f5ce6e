"""Remembers proposals that are not yet measured, so that parallel trials differ. Any thread.

The process keeps them, not the store: losing them costs only some variety among running trials. A
proposal without a result is forgotten after an hour.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from weights.search import Shares

EXPIRY_S = 3600.0
MAX_PER_SESSION = 64
MAX_SESSIONS = 1024
SAME = 1e-6  # largest difference of a share


class PendingAsks:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asks: OrderedDict[str, list[tuple[float, Shares]]] = OrderedDict()

    def shares_of(self, session_id: str, number_of_nodes: int) -> list[Shares]:
        """Returns the pending shares for this number of nodes, which may change before the first
        result is told."""
        now = self._clock()
        with self._lock:
            asks = self._asks.get(session_id, [])
            return [
                shares for expiry, shares in asks if expiry > now and len(shares) == number_of_nodes
            ]

    def add(self, session_id: str, asked: Iterable[Shares]) -> None:
        expiry = self._clock() + EXPIRY_S
        with self._lock:
            asks = self._asks.pop(session_id, []) + [(expiry, shares) for shares in asked]
            self._asks[session_id] = asks[-MAX_PER_SESSION:]
            while len(self._asks) > MAX_SESSIONS:
                self._asks.popitem(last=False)

    def remove(self, session_id: str, told: Iterable[Shares]) -> None:
        """Remove a pending proposal for each of `told` with the same shares."""
        with self._lock:
            asks = self._asks.get(session_id, [])
            for shares in told:
                if not asks:
                    break
                settled = next((a for a in asks if _is_same(a[1], shares)), None)
                if settled is not None:
                    asks.remove(settled)

    def forget(self, session_id: str) -> None:
        with self._lock:
            self._asks.pop(session_id, None)


def _is_same(a: Shares, b: Shares) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= SAME for x, y in zip(a, b, strict=True))
