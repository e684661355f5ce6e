"""Stores of searches: SQLite or Redis, behind one protocol.

An update touches the session's own record and the new observations, never the history, so that it
costs the same at the first observation and at the hundred thousandth.
"""

from collections.abc import Sequence
from typing import Protocol

from weights.search import Observation, Problem
from weights.session import Session, Told


class WeightStore(Protocol):
    """Sessions and their observations. Any thread, and any number of processes over one place.

    Every method raises StoreFailed where the place cannot be reached or does not answer in time.
    """

    def append(
        self, session_id: str, problem: Problem, observations: Sequence[Observation]
    ) -> Told:
        """Adds all of `observations`, at least one, or none; the first ones make the session.
        Durable when it returns. Raises SessionMismatch for other nodes or another direction."""

    def find(self, session_id: str) -> Session | None: ...

    def observations(self, session_id: str, first: int, count: int) -> list[Observation]:
        """Returns those numbered from `first` on, at most `count`, in the order of telling."""

    def sessions(self, first: int, count: int) -> list[Session]:
        """Returns sessions as far as there are, in the order of their ids in UTF-8."""

    def delete(self, session_id: str) -> bool:
        """Forgets a session with its observations; returns whether there was one."""

    def close(self) -> None:
        """Gives up connections. Idempotent."""
