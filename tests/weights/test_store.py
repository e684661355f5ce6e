"""One contract for every store: atomic, durable, and as quick at the end as at the beginning."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from common.errors import StoreFailed
from lab.kit.servers import TIMEOUT_S
from tests.stores import place, start_writer
from tests.weights.memory_store import MemoryStore
from weights.errors import SessionMismatch
from weights.search import Direction, Observation, Problem
from weights.session import Session
from weights.store import WeightStore
from weights.store.redis_store import RedisStore
from weights.store.sqlite_store import SqliteStore

OpenStore = Callable[[], WeightStore]
NAMES = ["s", "org/model ü", "nul\0 and <b>", "z" * 256]


def problem(
    n: int = 2, direction: Direction = "maximize", num_layers: int | None = None
) -> Problem:
    return Problem((0.0,) * n, (1.0,) * n, direction, num_layers)


def seen(metric: float, first: float = 0.1 + 0.2) -> Observation:
    return Observation((first, 1.0 - first), metric)


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
def store(open_store: OpenStore) -> Iterator[WeightStore]:
    with closing(open_store()) as opened:
        yield opened


def test_new_store_is_empty(store: WeightStore) -> None:
    assert store.sessions(0, 10) == []
    assert store.find("s") is None
    assert store.observations("s", 0, 10) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_told_comes_back_to_the_last_bit(open_store: OpenStore, name: str) -> None:
    written = [seen(1 / 3), seen(5e-324), seen(-1e100, 1.0), seen(0.1 + 0.2, 0.0)]
    bounds = Problem((0.0, 0.1), (1 / 3, 1.0), "minimize", 32)
    with closing(open_store()) as first:
        first.append(name, bounds, written)
    with closing(open_store()) as second:
        assert second.find(name) == Session(name, bounds, 4, written[2])
        assert second.observations(name, 0, 10) == written


def test_the_best_is_the_earliest_of_the_best(store: WeightStore) -> None:
    results = [store.append("s", problem(), [seen(m, w)])
               for m, w in [(1, 0.1), (1, 0.2), (3, 0.3), (2, 0.4), (3, 0.5)]]  # fmt: skip
    assert [(r.is_first, r.is_better) for r in results] == [
        (True, True), (False, False), (False, True), (False, False), (False, False),
    ]  # fmt: skip
    assert [r.session.num_observations for r in results] == [1, 2, 3, 4, 5]
    assert store.find("s") == results[-1].session
    assert results[-1].session.best == seen(3, 0.3)


def test_the_best_is_the_lowest_where_less_is_better(store: WeightStore) -> None:
    lower = problem(direction="minimize")
    results = [store.append("s", lower, [seen(m)]) for m in (2, 2, -1, 0)]
    assert [r.is_better for r in results] == [True, False, True, False]
    assert results[-1].session.best.metric == -1


def test_several_at_once_are_one_update(store: WeightStore) -> None:
    store.append("s", problem(), [seen(1)])
    result = store.append("s", problem(), [seen(2), seen(4), seen(3)])
    assert (result.is_first, result.is_better) == (False, True)
    assert result.session.best == seen(4)
    assert [o.metric for o in store.observations("s", 0, 10)] == [1, 2, 4, 3]


@pytest.mark.parametrize("other", [problem(3), problem(2, "minimize")])
def test_another_kind_of_search_is_refused_and_changes_nothing(
    store: WeightStore, other: Problem
) -> None:
    before = store.append("s", problem(), [seen(1)]).session
    with pytest.raises(SessionMismatch, match="session s is about 2 nodes"):
        store.append("s", other, [Observation((1.0,) + (0.0,) * (other.number_of_nodes - 1), 9)])
    assert store.find("s") == before
    assert store.observations("s", 0, 10) == [seen(1)]


def test_the_bounds_told_last_are_kept(store: WeightStore) -> None:
    store.append("s", problem(), [seen(1)])
    store.append("s", problem(num_layers=7), [seen(0)])
    session = store.find("s")
    assert session is not None
    assert session.problem.num_layers == 7


def test_history_and_sessions_come_in_pages(store: WeightStore) -> None:
    store.append("s", problem(), [seen(number) for number in range(10)])
    assert [o.metric for o in store.observations("s", 3, 4)] == [3, 4, 5, 6]
    assert store.observations("s", 8, 10) == [seen(8), seen(9)]
    assert store.observations("s", 10, 10) == store.observations("s", 0, 0) == []
    for name in ("ü", "a", "Z"):
        store.append(name, problem(), [seen(1)])
    assert [s.session_id for s in store.sessions(0, 9)] == ["Z", "a", "s", "ü"]
    assert [s.session_id for s in store.sessions(1, 2)] == ["a", "s"]
    assert store.sessions(4, 2) == store.sessions(0, 0) == []


def test_a_deleted_session_is_forgotten_and_may_start_anew(store: WeightStore) -> None:
    store.append("s", problem(), [seen(1)])
    store.append("t", problem(), [seen(1)])
    assert [store.delete("s"), store.delete("s")] == [True, False]
    assert [s.session_id for s in store.sessions(0, 9)] == ["t"]
    assert store.observations("s", 0, 10) == []
    assert store.append("s", problem(3), [Observation((1.0, 0.0, 0.0), 0)]).is_first


PROCESSES, UPDATES = 8, 25

# One process that becomes all of them: imports are most of what each would take.
TELLER = """
    import os
    import sys
    from pathlib import Path
    from weights.search import Observation, Problem
    from weights.store.redis_store import RedisStore
    from weights.store.sqlite_store import SqliteStore

    kind, where, processes, updates = sys.argv[1:]
    process, children = 1, []
    while process < int(processes) and (child := os.fork()):
        children.append(child)
        process += 1
    store = SqliteStore(Path(where)) if kind == "sqlite" else RedisStore(where)
    for number in range(int(updates)):
        weights = (process / 10, 1 - process / 10)
        store.append("s", Problem((0, 0), (1, 1)), [Observation(weights, float(number))])
        print(number, flush=True)
    if process == int(processes):
        sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_no_update_of_eight_processes_is_lost(kind: str, request: pytest.FixtureRequest) -> None:
    where = place(kind, request)
    tellers = start_writer(TELLER, kind, where, PROCESSES, UPDATES)
    tellers.communicate(timeout=TIMEOUT_S)
    assert tellers.returncode == 0
    with closing(opener(kind, where)()) as store:
        session = store.find("s")
        stored = store.observations("s", 0, 10_000)
    assert session is not None
    assert session.num_observations == len(stored) == PROCESSES * UPDATES
    for process in range(1, PROCESSES + 1):
        mine = [o.metric for o in stored if o.shares[0] == process / 10]
        assert mine == list(range(UPDATES))


def sqlite_steps(path: Path) -> int:
    """Instructions of SQLite's machine that one update takes, to the nearest ten."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 10
        return 0

    with closing(SqliteStore(path)) as store:
        store.append("s", problem(), [seen(1)])
        assert store._file._connection is not None
        store._file._connection.set_progress_handler(count, 10)
        store.append("s", problem(), [seen(1)])
    return steps


def test_an_update_is_the_same_work_at_100_and_at_100_000_points_in_sqlite(
    sqlite_path: Path,
) -> None:
    with closing(SqliteStore(sqlite_path)) as store:
        store.append("s", problem(), [seen(1)] * 100)
        few = sqlite_steps(sqlite_path)
        store.append("s", problem(), [seen(1)] * 99_900)
    assert 0 < few == pytest.approx(sqlite_steps(sqlite_path), abs=10)


def test_an_update_is_one_call_of_constant_commands_in_redis(clean_redis_url: str) -> None:
    def commands_of_an_update(store: RedisStore, client: "redis.Redis") -> dict[str, int]:
        client.config_resetstat()
        store.append("s", problem(), [seen(0)])
        stats = client.info("commandstats")
        return {name: stat["calls"] for name, stat in stats.items() if "config" not in name}

    with closing(RedisStore(clean_redis_url)) as store:
        client = redis.Redis.from_url(clean_redis_url)
        store.append("s", problem(), [seen(1)] * 100)
        few = commands_of_an_update(store, client)
        store.append("s", problem(), [seen(1)] * 99_900)
        assert commands_of_an_update(store, client) == few
        client.close()
    # One call by the client; the rest is what the script does inside the server.
    assert few == {"cmdstat_evalsha": 1, "cmdstat_hmget": 1, "cmdstat_llen": 1, "cmdstat_rpush": 1,
                   "cmdstat_hset": 1, "cmdstat_zadd": 1}  # fmt: skip


def test_unreachable_stores_say_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        closing(SqliteStore(tmp_path / "file" / "weights.db")) as unopened,
        pytest.raises(StoreFailed, match=r"SQLite store .* failed"),
    ):
        unopened.append("s", problem(), [seen(1)])
    with (
        closing(RedisStore("redis://127.0.0.1:1/0")) as unreached,
        pytest.raises(StoreFailed, match="Redis store failed"),
    ):
        unreached.find("s")


def test_a_store_that_comes_back_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    with closing(SqliteStore(tmp_path / "state" / "weights.db")) as store:
        with pytest.raises(StoreFailed):
            store.find("s")
        (tmp_path / "state").unlink()
        assert store.append("s", problem(), [seen(1)]).is_first


def test_an_update_that_fails_half_way_leaves_nothing(sqlite_path: Path) -> None:
    with closing(SqliteStore(sqlite_path)) as store:
        before = store.append("s", problem(), [seen(1)]).session
        with closing(sqlite3.connect(sqlite_path)) as other:
            other.execute(
                "CREATE TRIGGER full BEFORE INSERT ON observations WHEN NEW.number >= 3 "
                "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
            )
        with pytest.raises(StoreFailed, match="disk full"):
            store.append("s", problem(), [seen(2)] * 5)
        assert store.find("s") == before
        assert store.observations("s", 0, 10) == [seen(1)]
        assert store.append("s", problem(), [seen(2)]).session.num_observations == 2
