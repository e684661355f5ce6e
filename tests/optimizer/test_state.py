"""The state as records: it comes back as it was, and an edit writes what it changed."""

from contextlib import closing
from pathlib import Path

from common.stores.sqlite_store import SqliteRecords
from optimizer.state import SystemState, changes, from_records
from tests.optimizer.support import server, system


def test_state_comes_back_as_it_was(sqlite_path: Path) -> None:
    state = SystemState(
        system([server("s"), server("org/model", maxNumReplicas=4)], saturationPolicy="None"),
        {"s": 12.5},
        frozenset({"s"}),
    )
    with closing(SqliteRecords(sqlite_path)) as first:
        first.commit(changes(SystemState(), state))
    with closing(SqliteRecords(sqlite_path)) as second:
        assert from_records(second.load()).dump() == state.dump()


def test_an_edit_writes_only_what_it_changed() -> None:
    before = SystemState(system([server(f"s{i}") for i in range(100)]))
    after = SystemState(before.system.with_servers([server_spec("s7", rate=9)]))
    assert [(r.kind, r.name) for r in changes(before, after)] == [("server", "s7")]


def server_spec(name: str, rate: float):  # type: ignore[no-untyped-def]
    return system([server(name, rate)]).servers[name]
