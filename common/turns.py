"""Admits one expensive request at a time, so that many requests of one client cannot hold all
cores.

Large bodies are read one at a time, too, because decoding may take many times their bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from werkzeug.wrappers import Request

from common.errors import WireError

MAX_WAITING = 5  # each occupies a thread of the server, which needs threads for other requests
WAIT_S = 10.0
LARGE_BODY_BYTES = 2**20


class TooManyQuestions(WireError):
    status = 503
    code = "too_many_questions"
    retry_after_s = 2

    def __init__(self) -> None:
        super().__init__(
            f"Questions like this are answered one at a time; {MAX_WAITING} may wait, for "
            f"{WAIT_S:g} s. Ask again later, or fewer at once."
        )


class Turns:
    """Gives turns to requests, one at a time. Any thread."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._lock = Lock()  # guards `num_requests`
        self.num_requests = 0  # requests that run or wait

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for a turn. Raises TooManyQuestions."""
        with self._lock:
            if self.num_requests > MAX_WAITING:
                raise TooManyQuestions()
            self.num_requests += 1
        try:
            if not self._turn.acquire(timeout=WAIT_S):
                raise TooManyQuestions()
            try:
                yield
            finally:
                self._turn.release()
        finally:
            with self._lock:
                self.num_requests -= 1


def may_be_large(request: Request) -> bool:
    """Returns whether a body is read in turn: it is large, or of unknown length."""
    num_bytes = request.content_length
    return num_bytes is None or num_bytes > LARGE_BODY_BYTES or is_encoded(request)


def is_encoded(request: Request) -> bool:
    """Returns whether the body is compressed."""
    return request.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity")
