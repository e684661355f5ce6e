"""A store of searches that forgets everything with the process."""

import threading
from collections.abc import Sequence

from weights.search import Observation, Problem
from weights.session import Session, UpdateEffect, apply_update


class MemoryStore:
    """Any thread, of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._observations: dict[str, list[Observation]] = {}

    def append(
        self, session_id: str, problem: Problem, observations: Sequence[Observation]
    ) -> UpdateEffect:
        with self._lock:
            result = apply_update(self._sessions.get(session_id), session_id, problem, observations)
            self._sessions[session_id] = result.session
            self._observations.setdefault(session_id, []).extend(observations)
        return result

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def observations(self, session_id: str, first: int, count: int) -> list[Observation]:
        with self._lock:
            return self._observations.get(session_id, [])[first : first + count]

    def sessions(self, first: int, count: int) -> list[Session]:
        with self._lock:
            ids = sorted(self._sessions, key=str.encode)[first : first + count]
            return [self._sessions[one] for one in ids]

    def delete(self, session_id: str) -> bool:
        with self._lock:
            self._observations.pop(session_id, None)
            return self._sessions.pop(session_id, None) is not None

    def close(self) -> None:
        pass
