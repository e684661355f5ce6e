"""Questions that take seconds of a core, asked one at a time: who asks many stops nobody.

So are large bodies read: decoded, each may take many times its bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

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
        self._lock = Lock()  # of the number
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


def may_be_large(body_bytes: int | None) -> bool:
    """Whether a body is read in turn; None: it does not say how long it is."""
    return body_bytes is None or body_bytes > LARGE_BODY_BYTES
