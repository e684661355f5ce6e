"""Runs operators' work on the ranks in pauses between requests, on the decode thread.

Layers cannot move while a row has keys and values in them. Work waits until no step has run for
QUIET_S; after PATIENCE_S, it waits only until no row has work. Requests that come while it runs
wait for its end.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, Full, Queue
from typing import Any, TypeVar

from inference_api.errors import Unavailable

QUIET_S, PATIENCE_S, MAX_WAIT_S = 2.0, 20.0, 30.0
RETRY_AFTER_S = 5

Answer = TypeVar("Answer")


class Pauses:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet_from_s = self._patient_until_s = clock()
        self._waiting: Queue[tuple[Callable[[], Any], Future[Any]]] = Queue(maxsize=1)

    def do(self, work: Callable[[], Answer]) -> Answer:
        """Request thread: have the decode thread do `work`. Returns its result. Raises its errors,
        or Unavailable if other work waits, or no pause comes in time."""
        answer: Future[Answer] = Future()
        try:
            self._waiting.put_nowait((work, answer))
            self._patient_until_s = self._clock() + PATIENCE_S
            return answer.result(MAX_WAIT_S)
        except Full:
            pass
        except TimeoutError:
            if not answer.cancel():  # the work has begun, and all its waits are bounded
                return answer.result()
        raise Unavailable("There is no pause between requests; try again later.", RETRY_AFTER_S)

    def worked(self) -> None:
        """Decode thread: note that a step has just run."""
        self._quiet_from_s = self._clock() + QUIET_S

    def turn(self) -> bool:
        """Decode thread, while no row has work: do requested work if it is time. Returns whether
        any was done. Raises the errors of the work."""
        if self._clock() < min(self._quiet_from_s, self._patient_until_s):
            return False
        try:
            work, answer = self._waiting.get_nowait()
        except Empty:
            return False
        if not answer.set_running_or_notify_cancel():
            return False
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)
            raise
        return True
