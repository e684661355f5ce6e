"""The bounded queue between request threads and the decode thread.

Any thread may call anything here, unless its docstring says otherwise. A cancelled request leaves
at once, wherever it is in line, so it takes no room from requests whose clients still wait.
"""

import math
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping
from threading import Condition, Event, Lock
from typing import NamedTuple

from inference_api.errors import HearthError, MemberQueueFull, QueueFull
from inference_api.request import GenerationRequest

RATE_WINDOW = 64  # number of calls of `get` over which the drain rate is measured
MAX_RETRY_AFTER_S = 60
PRIORITY_S = 10.0  # one step of priority counts as much as waiting for this time

QueueRank = tuple[float, int]  # place in line: arrival shifted by priority, then a running number


class Waiting(NamedTuple):
    """Requests that wait for one model. `oldest_arrived_s` is the arrival time of the one that has
    waited longest, whatever its priority; 0 if none waits."""

    num_requests: int
    oldest_arrived_s: float
    is_closed: bool  # no further request can come


class InputQueue:
    """One line of requests per model, first come, first served.

    At most `max_size` requests may wait for a model, and one more for each of its free rows.
    `num_rows` has the number of rows of each model. The decode thread takes requests with `get` and
    calls `row_is_free` when one has ended.

    A priority of n counts as arriving n x `PRIORITY_S` seconds later; it may be negative. All
    requests age at the same pace, so their order never changes and none waits for ever.
    """

    def __init__(
        self,
        max_size: int,
        num_rows: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
        shared_rows: int | None = None,
    ) -> None:
        """If models share rows, `shared_rows` is their number, and `max_size` bounds all lines."""
        self._clock = clock
        self._lines = {model: _Line(rows) for model, rows in num_rows.items()}
        self._max_size = max_size
        self._shared_rows = shared_rows
        self._num_put = 0
        self._lock = Lock()
        self._news = Event()  # wakes the decode thread
        self._room = Condition(self._lock)  # wakes request threads that wait for room
        self._refusal: Callable[[], HearthError] | None = None

    def put(self, request: GenerationRequest, is_first: bool = True) -> None:
        """Add a request to its model's line.

        `is_first` says whether it is the first request of its call. Later ones fill the line only
        half, so that a call with many prompts leaves room for others. Raises QueueFull or, once the
        queue is closed, the error given to `refuse`.
        """
        with self._lock:
            self._check_room(request.model, is_first)
            self._num_put += 1
            now_s = self._clock()
            place = (now_s + request.params.priority * PRIORITY_S, self._num_put)
            self._lines[request.model].put(request, place, now_s)
        self._news.set()

    def check_room(self, model: str, is_first: bool = True) -> None:
        """Raises what `put` would raise now for a request to this model."""
        with self._lock:
            self._check_room(model, is_first)

    def get(self, model: str) -> GenerationRequest | None:
        """Take the model's next request, or return None. Never waits."""
        with self._lock:
            request = self._lines[model].get(self._clock())
            if request is not None:
                self._room.notify_all()
            return request

    def peek(self, model: str) -> GenerationRequest | None:
        """Returns the model's next request, or None. It may leave at any time."""
        with self._lock:
            return self._lines[model].first()

    def take_all(self, model: str) -> list[GenerationRequest]:
        """Take all of the model's requests out of its line, so that the caller can refuse them."""
        with self._lock:
            requests = self._lines[model].take_all()
            self._room.notify_all()
            return requests

    def row_is_free(self, model: str) -> None:
        """Note that a request from an earlier `get` has ended."""
        with self._lock:
            self._lines[model].num_running -= 1
            self._room.notify_all()

    def waiting(self, model: str) -> Waiting:
        with self._lock:
            return self._waiting(self._lines[model])

    def all_waiting(self) -> dict[str, Waiting]:
        """Returns `waiting` for each model for which a request waits."""
        with self._lock:
            return {name: self._waiting(line) for name, line in self._lines.items() if len(line)}

    def wait_for_request(self, timeout_s: float) -> None:
        """Wait until a request comes or `wake` is called, for at most `timeout_s`. Returns at once
        if either has happened since the last return. Decode thread only."""
        self._news.wait(timeout_s)
        self._news.clear()

    def wait_for_room(self, model: str, timeout_s: float) -> None:
        """Wait until there may be room for a later request of a call, or the queue is closed, for
        at most `timeout_s`."""
        with self._lock:
            if self._refusal is None and self._is_full(model, is_first=False):
                self._room.wait(timeout_s)

    def remove(self, request: GenerationRequest) -> None:
        """Take a request out of its line, if it still waits there."""
        with self._lock:
            self._lines[request.model].remove(request)
            self._room.notify_all()

    def refuse(self, refusal: Callable[[], HearthError]) -> None:
        """Close the queue: from now on `put` raises `refusal()`. Waiting requests stay."""
        with self._lock:
            self._refusal = refusal
            self._room.notify_all()

    def clear(self) -> None:
        with self._lock:
            for line in self._lines.values():
                line.take_all()
            self._room.notify_all()

    def wake(self) -> None:
        """End a `wait_for_request`, so that the decode thread looks for work."""
        self._news.set()

    def num_waiting(self, model: str) -> int:
        return len(self._lines[model])

    def __len__(self) -> int:
        """Returns the number of waiting requests of all models."""
        return sum(map(len, self._lines.values()))

    def _waiting(self, line: "_Line") -> Waiting:
        return Waiting(len(line), line.oldest_arrived_s, self._refusal is not None)

    def _check_room(self, model: str, is_first: bool) -> None:
        if self._refusal is not None:
            raise self._refusal()
        if self._is_full(model, is_first):
            line = self._lines[model]
            retry_after_s = line.retry_after_s(self._clock())
            if self._shared_rows is not None:
                raise MemberQueueFull(model, len(line), retry_after_s)
            raise QueueFull(retry_after_s)

    def _is_full(self, model: str, is_first: bool) -> bool:
        max_size = self._max_size if is_first else self._max_size // 2
        if self._shared_rows is None:
            return self._lines[model].is_full(max_size)
        lines = self._lines.values()
        num_free_rows = max(0, self._shared_rows - sum([line.num_running for line in lines]))
        return len(self) >= max_size + num_free_rows


class _Line:
    """The requests that wait for one model. All but its length is used under the queue's lock."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self.num_running = 0
        self._waiting: dict[GenerationRequest, float] = {}  # arrival times, in order of arrival
        self._in_order: list[tuple[QueueRank, GenerationRequest]] = []  # the next one first
        self._taken_at_s: deque[float] = deque(maxlen=RATE_WINDOW)

    @property
    def oldest_arrived_s(self) -> float:
        return next(iter(self._waiting.values()), 0.0)

    def put(self, request: GenerationRequest, place: QueueRank, now_s: float) -> None:
        self._waiting[request] = now_s
        insort(self._in_order, (place, request))

    def first(self) -> GenerationRequest | None:
        return self._in_order[0][1] if self._in_order else None

    def get(self, now_s: float) -> GenerationRequest | None:
        request = self.first()
        if request is not None:
            del self._waiting[request], self._in_order[0]
            self._taken_at_s.append(now_s)
            self.num_running += 1
        return request

    def remove(self, request: GenerationRequest) -> None:
        if self._waiting.pop(request, None) is not None:
            self._in_order = [each for each in self._in_order if each[1] is not request]

    def take_all(self) -> list[GenerationRequest]:
        requests = list(self._waiting)
        self._waiting.clear()
        self._in_order.clear()
        return requests

    def is_full(self, max_size: int) -> bool:
        num_free_rows = max(0, self._num_rows - self.num_running)
        return len(self._waiting) >= max_size + num_free_rows

    def retry_after_s(self, now_s: float) -> int:
        """Returns the seconds until a new request could start: the line's length / drain rate."""
        if len(self._taken_at_s) < 2:
            return 1
        elapsed_s = now_s - self._taken_at_s[0]
        takes_per_s = len(self._taken_at_s) / max(elapsed_s, 1e-3)
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(len(self._waiting) / takes_per_s)))

    def __len__(self) -> int:
        return len(self._waiting)
