"""Undelivered tokens: one queue per live session, keyed by session id.

A request thread opens its queue before its request is queued and closes it in the end; the decode
thread publishes once per step. Any thread may call anything here. The lock guards the dictionary
only and is never held while a thread waits.
"""

import uuid
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from threading import Lock

from inference_api.request import SessionId, TokenEvent


class OutputQueue:
    """The events of one session, in order. One thread reads it."""

    def __init__(self, session_id: SessionId, model: str) -> None:
        self.session_id = session_id
        self.model = model
        self._events: SimpleQueue[TokenEvent] = SimpleQueue()

    def put(self, event: TokenEvent) -> None:
        self._events.put(event)

    def get(self, timeout_s: float) -> TokenEvent | None:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None


class OutputQueues:
    """All live sessions. A session is live exactly while its queue is open."""

    def __init__(self) -> None:
        self._queues: dict[SessionId, OutputQueue] = {}
        self._lock = Lock()

    def open(self, model: str, wanted: str | None = None) -> OutputQueue:
        """A queue for an answer of `model`, under the wanted session id, or under a fresh one if
        that is taken or None."""
        with self._lock:
            session_id = SessionId(wanted) if wanted else _new_session_id()
            if session_id in self._queues:
                session_id = _new_session_id()
            queue = OutputQueue(session_id, model)
            self._queues[session_id] = queue
            return queue

    def publish(self, events: Iterable[tuple[SessionId, TokenEvent]]) -> None:
        """Hand out one step's events; those of sessions that have closed meanwhile are dropped."""
        for session_id, event in events:
            queue = self._queues.get(session_id)
            if queue is not None:
                queue.put(event)

    def publish_to_all(self, event: TokenEvent) -> None:
        with self._lock:
            queues = list(self._queues.values())
        for queue in queues:
            queue.put(event)

    def close(self, session_id: SessionId) -> None:
        with self._lock:
            self._queues.pop(session_id, None)

    def num_sessions(self, model: str) -> int:
        with self._lock:
            return sum(queue.model == model for queue in self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)


def _new_session_id() -> SessionId:
    return SessionId(uuid.uuid4().hex)
