"""Admits one expensive request at a time, so that one client's many cannot hold every core.

Large bodies are read one at a time, too: decoded, each may take many times its bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from werkzeug.wrappers import Request

from common.errors import WireError

MAX_WAITING = 5  # each has a thread of the server's, of which there have to be others
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
    """Any thread."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._lock = Lock()  # guards `_num_asked`
        self._num_asked = 0

    @property
    def num_asked(self) -> int:
        """Questions that are being answered, or wait."""
        return self._num_asked

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Raises TooManyQuestions."""
        with self._lock:
            if self._num_asked > MAX_WAITING:
                raise TooManyQuestions()
            self._num_asked += 1
        try:
            if not self._turn.acquire(timeout=WAIT_S):
                raise TooManyQuestions()
            try:
                yield
            finally:
                self._turn.release()
        finally:
            with self._lock:
                self._num_asked -= 1


def may_be_large(request: Request) -> bool:
    """Whether a body is read in turn: it is large, or does not say how long it will be."""
    num_bytes = request.content_length
    return num_bytes is None or num_bytes > LARGE_BODY_BYTES or is_encoded(request)


def is_encoded(request: Request) -> bool:
    """Whether the body has to be decompressed before it is read."""
    return request.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity")
