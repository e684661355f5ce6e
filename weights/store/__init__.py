"""Stores of searches: SQLite or Redis, behind one protocol.

An update touches only the session's record and the new observations, not the history, so its cost
does not grow with the history.
"""

from collections.abc import Sequence
from typing import Protocol

from weights.search import Observation, Problem
from weights.session import Session, UpdateEffect


class WeightStore(Protocol):
    """Sessions and their observations. Any thread, and any number of processes over one store.
    Every method raises StoreFailed if the store cannot be reached or does not answer in time."""

    def append(
        self, session_id: str, problem: Problem, observations: Sequence[Observation]
    ) -> UpdateEffect:
        """Add all of `observations` (at least one), or none. The first create the session. Durable
        on return. Raises SessionMismatch for another number of nodes or another direction."""

    def find(self, session_id: str) -> Session | None: ...

    def observations(self, session_id: str, first: int, count: int) -> list[Observation]:
        """Returns at most `count` observations, in the order they were told, from index `first`."""

    def sessions(self, first: int, count: int) -> list[Session]:
        """Returns at most `count` sessions from index `first`, ordered by their ids in UTF-8."""

    def delete(self, session_id: str) -> bool:
        """Delete a session with its observations. Returns whether there was one."""

    def close(self) -> None:
        """Close connections. Idempotent."""
