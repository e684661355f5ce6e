"""One contract for every store: all or nothing, and there after the process is killed."""

import gc
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest
import redis

from common.errors import StoreFailed
from common.stores import Record, RecordStore
from common.stores.redis_store import RedisRecords
from common.stores.sqlite_store import SqliteRecords
from tests.common.memory_store import MemoryRecords
from tests.stores import kill_after, place, start_writer

OpenStore = Callable[[], RecordStore]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    """Opens the same store each time; a memory store is only ever the same object."""
    if request.param == "memory":
        memory = MemoryRecords()
        return lambda: memory
    return opener(request.param, place(request.param, request))


def opener(kind: str, where: str) -> OpenStore:
    return lambda: SqliteRecords(Path(where)) if kind == "sqlite" else RedisRecords(where, "test")


@pytest.fixture
def store(open_store: OpenStore) -> Iterator[RecordStore]:
    with closing(open_store()) as opened:
        yield opened


def test_new_store_is_empty(store: RecordStore) -> None:
    assert store.load() == []


def test_records_are_written_replaced_and_deleted_together(store: RecordStore) -> None:
    store.commit([Record("server", "a", "1"), Record("server", "b/ü\0", "2")])
    store.commit([Record("server", "a", "3"), Record("server", "b/ü\0", None),
                  Record("class", "a", "4")])  # fmt: skip
    assert sorted(store.load()) == [Record("class", "a", "4"), Record("server", "a", "3")]


def test_deleting_what_is_not_there_is_nothing(store: RecordStore) -> None:
    store.commit([Record("server", "a", None)])
    store.commit([])
    assert store.load() == []


def test_records_are_there_when_the_store_is_opened_again(open_store: OpenStore) -> None:
    with closing(open_store()) as first:
        first.commit([Record("server", "org/model", "1")])
    with closing(open_store()) as second:
        assert second.load() == [Record("server", "org/model", "1")]


def test_failed_sqlite_commit_changes_nothing(sqlite_path: Path) -> None:
    with closing(SqliteRecords(sqlite_path)) as store:
        store.commit([Record("server", "a", "1")])
        unwritable = Record("server", "b", object())  # type: ignore[arg-type]
        with pytest.raises(StoreFailed, match="not saved"):
            store.commit([Record("server", "a", "2"), unwritable])
        assert store.load() == [Record("server", "a", "1")]


def test_a_new_file_is_opened_once_others_are_done_with_it(sqlite_path: Path) -> None:
    """Processes that start together all choose WAL, for which SQLite waits for nobody."""
    sqlite_path.parent.mkdir()
    with (
        closing(sqlite3.connect(sqlite_path, isolation_level=None)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("BEGIN IMMEDIATE")
        opened = pool.submit(SqliteRecords, sqlite_path)
        wait([opened], timeout=0.1)  # ends at once where it fails
        other.execute("COMMIT")
        opened.result().close()


def test_a_file_that_nobody_closes_is_closed_with_its_store(sqlite_path: Path) -> None:
    """Python 3.13 warns of a connection that goes open, and here warnings are errors."""
    store: RecordStore | None = SqliteRecords(sqlite_path)
    assert store is not None
    store.commit([Record("server", "a", "1")])
    with_wal = len([*sqlite_path.parent.iterdir()])
    store = None
    gc.collect()
    assert len([*sqlite_path.parent.iterdir()]) < with_wal


def test_files_written_before_are_read(sqlite_path: Path) -> None:
    sqlite_path.parent.mkdir()
    with closing(sqlite3.connect(sqlite_path)) as file:
        file.execute(
            "CREATE TABLE records (kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, "
            "PRIMARY KEY (kind, name))"
        )
        file.execute("INSERT INTO records VALUES ('server', 'a', '1')")
        file.commit()
    with closing(SqliteRecords(sqlite_path)) as store:
        assert store.load() == [Record("server", "a", "1")]


def test_keys_written_before_are_read(clean_redis_url: str) -> None:
    with redis.Redis.from_url(clean_redis_url) as client:
        client.sadd("optimizer", "server")
        client.hset("optimizer:server", "a", "1")
    with closing(RedisRecords(clean_redis_url, "optimizer")) as store:
        assert store.load() == [Record("server", "a", "1")]


def test_a_closed_file_takes_nothing_more(sqlite_path: Path) -> None:
    store = SqliteRecords(sqlite_path)
    store.close()
    store.close()
    with pytest.raises(StoreFailed, match="not saved"):
        store.commit([Record("server", "a", "1")])


def test_unreachable_stores_say_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="cannot open"):
        SqliteRecords(tmp_path / "file" / "optimizer.db")
    with (
        closing(RedisRecords("redis://127.0.0.1:1/0", "test")) as store,
        pytest.raises(StoreFailed, match="cannot read the state from Redis"),
    ):
        store.load()


WRITER = """
    import sys
    from common.stores import Record
    from common.stores.redis_store import RedisRecords
    from common.stores.sqlite_store import SqliteRecords
    from pathlib import Path

    kind, where = sys.argv[1:]
    store = SqliteRecords(Path(where)) if kind == "sqlite" else RedisRecords(where, "test")
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
