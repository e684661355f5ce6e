"""Fetches the state of the cluster's controller, for the dashboard."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from common.fetch import FetchBounds, FetchFailed, fetch
from inference_api.errors import Unavailable
from inference_api.tools.values import refuse_constant

BOUNDS = FetchBounds(connect_s=2.0, read_s=3.0, max_bytes=4 * 2**20)
FRESH_S = 1.0  # requests within this time get the same answer
RETRY_AFTER_S = 5

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """`state` is the answer of the controller's `GET /state` from `age_s` seconds ago."""

    age_s: float
    state: Json


class ClusterState:
    """The controller's last answer. For any thread. Only one thread at a time asks the controller;
    others get the last answer, so a controller that hangs blocks a single thread."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = f"{url.rstrip('/')}/state"
        self._clock = clock
        self._asking = Lock()
        self._last: tuple[float, Json] | None = None  # time of the question, and the answer

    def read(self) -> ClusterAnswer:
        """Returns the answer. Raises Unavailable."""
        last, now_s = self._last, self._clock()
        is_fresh = last is not None and now_s - last[0] < FRESH_S
        if not is_fresh and self._asking.acquire(blocking=False):
            try:
                last = self._last = (now_s, _state(fetch(self._url, BOUNDS)))
            except (FetchFailed, ValueError, RecursionError) as error:
                self._last = None
                raise Unavailable(f"The cluster cannot be read: {error}", RETRY_AFTER_S) from error
            finally:
                self._asking.release()
        if last is None:
            raise Unavailable("The cluster's controller has not answered yet.", RETRY_AFTER_S)
        return ClusterAnswer(round(self._clock() - last[0], 3), last[1])


def _state(content: bytes) -> Json:
    """Raises ValueError and RecursionError."""
    state = json.loads(content, parse_constant=refuse_constant)
    if not isinstance(state, dict):
        raise ValueError("its state is no JSON object")
    return state
