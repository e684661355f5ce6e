"""Records that are forgotten with the process."""

from collections.abc import Iterable

from common.stores import Record


class MemoryRecords:
    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str], str] = {}  # replaced whole, never changed

    def load(self) -> list[Record]:
        return [Record(kind, name, body) for (kind, name), body in self._bodies.items()]

    def commit(self, changes: Iterable[Record]) -> None:
        after: dict[tuple[str, str], str | None] = {**self._bodies}
        after |= {(kind, name): body for kind, name, body in changes}
        self._bodies = {key: body for key, body in after.items() if body is not None}

    def close(self) -> None:
        pass
