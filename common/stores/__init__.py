"""Stores of small records by (kind, name): SQLite or Redis, by one protocol.

A store writes a set of record changes whole or not at all, and what `commit` returned from is
there after the process is killed. One process owns a store; calls may come from any thread.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Record(NamedTuple):
    kind: str
    name: str
    body: str | None  # None in a change: delete it


class RecordStore(Protocol):
    """Any thread."""

    def load(self) -> list[Record]:
        """All records. Raises StoreFailed."""

    def commit(self, changes: Iterable[Record]) -> None:
        """Write all of them, or none. Durable when it returns. Raises StoreFailed."""

    def close(self) -> None:
        """Give up connections. Idempotent."""
