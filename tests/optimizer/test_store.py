"""One contract for every store: all or nothing, and there after the process is killed."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from optimizer.errors import StoreFailed
from optimizer.state import Record, State, changes, from_records
from optimizer.store import MemoryStore, RedisStore, SqliteStore, StateStore
from tests.optimizer.support import server, system
from tests.stores import kill_after, place, start_writer

OpenStore = Callable[[], StateStore]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    """Opens the same store each time; a memory store is only ever the same object."""
    if request.param == "memory":
        memory = MemoryStore()
        return lambda: memory
    return opener(request.param, place(request.param, request))


def opener(kind: str, where: str) -> OpenStore:
    return lambda: SqliteStore(Path(where)) if kind == "sqlite" else RedisStore(where)


@pytest.fixture
def store(open_store: OpenStore) -> Iterator[StateStore]:
    with closing(open_store()) as opened:
        yield opened


def test_new_store_is_empty(store: StateStore) -> None:
    assert store.load() == []


def test_records_are_written_replaced_and_deleted_together(store: StateStore) -> None:
    store.commit([Record("server", "a", "1"), Record("server", "b/ü\0", "2")])
    store.commit([Record("server", "a", "3"), Record("server", "b/ü\0", None),
                  Record("class", "a", "4")])  # fmt: skip
    assert sorted(store.load()) == [Record("class", "a", "4"), Record("server", "a", "3")]


def test_deleting_what_is_not_there_is_nothing(store: StateStore) -> None:
    store.commit([Record("server", "a", None)])
    store.commit([])
    assert store.load() == []


def test_state_comes_back_as_it_was(open_store: OpenStore) -> None:
    state = State(
        system([server("s"), server("org/model", maxNumReplicas=4)], saturationPolicy="None"),
        {"s": 12.5},
        frozenset({"s"}),
    )
    with closing(open_store()) as first:
        first.commit(changes(State(), state))
    with closing(open_store()) as second:
        assert from_records(second.load()).dump() == state.dump()


def test_an_edit_writes_only_what_it_changed() -> None:
    before = State(system([server(f"s{i}") for i in range(100)]))
    after = State(before.system.with_servers([server_spec("s7", rate=9)]))
    assert [(r.kind, r.name) for r in changes(before, after)] == [("server", "s7")]


def server_spec(name: str, rate: float):  # type: ignore[no-untyped-def]
    return system([server(name, rate)]).servers[name]


def test_failed_sqlite_commit_changes_nothing(sqlite_path: Path) -> None:
    with closing(SqliteStore(sqlite_path)) as store:
        store.commit([Record("server", "a", "1")])
        unwritable = Record("server", "b", object())  # type: ignore[arg-type]
        with pytest.raises(StoreFailed, match="not saved"):
            store.commit([Record("server", "a", "2"), unwritable])
        assert store.load() == [Record("server", "a", "1")]


def test_unreachable_stores_say_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="cannot open"):
        SqliteStore(tmp_path / "file" / "optimizer.db")
    with (
        closing(RedisStore("redis://127.0.0.1:1/0")) as store,
        pytest.raises(StoreFailed, match="cannot read the state from Redis"),
    ):
        store.load()


WRITER = """
    import sys
    from optimizer.state import Record
    from optimizer.store import RedisStore, SqliteStore
    from pathlib import Path

    kind, where = sys.argv[1:]
    store = SqliteStore(Path(where)) if kind == "sqlite" else RedisStore(where)
    for number in range(10**9):
        store.commit([Record("left", str(number), "x"), Record("right", str(number), "y")])
        print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_what_was_acknowledged_survives_kill_nine(
    kind: str, request: pytest.FixtureRequest
) -> None:
    where = place(kind, request)
    acknowledged = kill_after(start_writer(WRITER, kind, where), 60)
    with closing(opener(kind, where)()) as store:
        records = store.load()
    left = {int(r.name) for r in records if r.kind == "left"}
    right = {int(r.name) for r in records if r.kind == "right"}
    assert left == right
    assert set(range(acknowledged + 1)) <= left
