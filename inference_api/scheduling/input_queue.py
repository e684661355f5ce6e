"""The bounded queue between request threads and the decode thread.

Any thread may call anything here. A cancelled request leaves at once, wherever it stands in the
line, so that vanished clients never hold a place against living ones.
"""

import heapq
import math
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Lock

from inference_api.errors import HearthError, QueueFull
from inference_api.request import GenerationRequest, SessionId

RATE_WINDOW = 64  # takes over which the drain rate is measured
MAX_RETRY_AFTER_S = 60
PRIORITY_S = 10.0  # seconds of waiting that one step of priority is worth


class InputQueue:
    """First come, first served: at most `max_size` requests wait, and one more for each free row.

    Whoever takes requests says when the row of one is free again.
    A priority below another counts as having come `PRIORITY_S` seconds earlier for each step. Since
    all wait at the same pace their order never changes, and nobody waits for ever.
    """

    def __init__(
        self, max_size: int, num_rows: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_size = max_size
        self._num_rows = num_rows
        self._num_running = 0
        self._clock = clock
        self._waiting: dict[SessionId, GenerationRequest] = {}
        self._line: list[tuple[float, int, SessionId]] = []  # a heap; may name some that have left
        self._num_put = 0
        self._lock = Lock()
        self._request = Condition(self._lock)  # the decode thread waits for one
        self._room = Condition(self._lock)  # request threads wait for some
        self._refusal: Callable[[], HearthError] | None = None
        self._taken_at_s: deque[float] = deque(maxlen=RATE_WINDOW)

    def put(self, request: GenerationRequest) -> None:
        """Raises QueueFull, or what `refuse` was given once the queue is closed."""
        with self._lock:
            self._check_room()
            self._waiting[request.session_id] = request
            self._num_put += 1
            came_s = self._clock() + request.priority * PRIORITY_S
            heapq.heappush(self._line, (came_s, self._num_put, request.session_id))
            self._request.notify()

    def check_room(self) -> None:
        """Raises what `put` would raise now."""
        with self._lock:
            self._check_room()

    def get(self) -> GenerationRequest | None:
        """Take the request whose turn it is, or None; never waits."""
        with self._lock:
            if not self._waiting:
                return None
            self._taken_at_s.append(self._clock())
            while (session_id := heapq.heappop(self._line)[2]) not in self._waiting:
                continue
            self._num_running += 1
            self._room.notify_all()
            return self._waiting.pop(session_id)

    def row_is_free(self) -> None:
        """The request of an earlier `get` has ended."""
        with self._lock:
            self._num_running -= 1
            self._room.notify_all()

    def wait_for_request(self, timeout_s: float) -> None:
        """Return when a request is there, `wake` is called or the time is over."""
        with self._lock:
            if not self._waiting:
                self._request.wait(timeout_s)

    def wait_for_room(self, timeout_s: float) -> None:
        """Return when there is room, `put` would raise another error, or the time is over."""
        with self._lock:
            if self._refusal is None and self._is_full():
                self._room.wait(timeout_s)

    def remove(self, session_id: SessionId) -> bool:
        """Take a request out of the line; False when it is not (or no longer) waiting."""
        with self._lock:
            is_there = self._waiting.pop(session_id, None) is not None
            self._forget_those_that_left()
            self._room.notify_all()
            return is_there

    def refuse(self, refusal: Callable[[], HearthError]) -> None:
        """Close for new requests: from now on `put` raises `refusal()`. Waiting ones stay."""
        with self._lock:
            self._refusal = refusal
            self._room.notify_all()

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._line.clear()
            self._room.notify_all()

    def wake(self) -> None:
        """End a `wait_for_request`, so that the decode thread looks around."""
        with self._lock:
            self._request.notify_all()

    def __len__(self) -> int:
        return len(self._waiting)

    def _forget_those_that_left(self) -> None:
        """Keep the heap from growing when many leave and nobody is served."""
        if len(self._line) > 2 * (self._max_size + self._num_rows):
            self._line = [place for place in self._line if place[2] in self._waiting]
            heapq.heapify(self._line)

    def _check_room(self) -> None:
        if self._refusal is not None:
            raise self._refusal()
        if self._is_full():
            raise QueueFull(self._retry_after_s())

    def _is_full(self) -> bool:
        num_free_rows = max(0, self._num_rows - self._num_running)
        return len(self._waiting) >= self._max_size + num_free_rows

    def _retry_after_s(self) -> int:
        """When a newcomer's turn would come: the line's length over the measured drain rate."""
        if len(self._taken_at_s) < 2:
            return 1
        elapsed_s = self._clock() - self._taken_at_s[0]
        takes_per_s = len(self._taken_at_s) / max(elapsed_s, 1e-3)
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(len(self._waiting) / takes_per_s)))
