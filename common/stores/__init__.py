"""Stores of small records by (kind, name), in SQLite or Redis, with one protocol.

A store writes a set of changes whole or not at all, and changes survive the process once `commit`
has returned. One process owns a store; any thread may call it.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Record(NamedTuple):
    kind: str
    name: str
    body: str | None  # None in a change: delete it


class RecordStore(Protocol):
    """A store of records. Any thread."""

    def load(self) -> list[Record]:
        """Returns all records. Raises StoreFailed."""

    def commit(self, changes: Iterable[Record]) -> None:
        """Write all changes, or none. Durable when it returns. Raises StoreFailed."""

    def close(self) -> None:
        """Close connections. Idempotent."""
