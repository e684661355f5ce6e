"""The open output queues: one for each request that has a reader.

A request thread opens a queue, which its request carries to the decode thread, and closes it at
the end. Any thread may call anything here. The lock is never held while a thread waits.
"""

import uuid
from threading import Lock

from inference_api.request import OutputQueue, SessionId, TokenEvent


class OutputQueues:
    """All live sessions. A session is live exactly while its queue is open."""

    def __init__(self) -> None:
        self._open: set[OutputQueue] = set()
        self._lock = Lock()

    def open(self, model: str, wanted: str | None = None) -> OutputQueue:
        """Returns a queue for an answer of `model`. Its session id is the wanted one, or a new one
        if none is wanted or a live session has it."""
        with self._lock:
            is_free = wanted and all(queue.session_id != wanted for queue in self._open)
            queue = OutputQueue(
                SessionId(wanted if wanted and is_free else uuid.uuid4().hex), model
            )
            self._open.add(queue)
            return queue

    def put_to_all(self, event: TokenEvent) -> None:
        with self._lock:
            queues = list(self._open)
        for queue in queues:
            queue.put(event)

    def close(self, queue: OutputQueue) -> None:
        """Close a queue. Idempotent."""
        queue.is_closed = True
        with self._lock:
            self._open.discard(queue)

    def num_sessions(self, model: str) -> int:
        with self._lock:
            return sum(queue.model == model for queue in self._open)

    def __len__(self) -> int:
        return len(self._open)
