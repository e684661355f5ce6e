"""The owner of the state: edits, solves, and many threads at once."""

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import StoreFailed
from common.stores import Record
from common.stores.sqlite_store import SqliteRecords
from common.turns import MAX_WAITING, TooManyQuestions
from optimizer.answer import Answer
from optimizer.errors import NotFound, StateChanged
from optimizer.inferno_json import read
from optimizer.optimize import optimize
from optimizer.service import OptimizerService, StatefulService, StatelessService
from optimizer.spec import AllocationData, OptimizerSpec, ServerSpec
from optimizer.state import SystemState, from_records
from optimizer.system import System
from tests.common.memory_store import MemoryRecords
from tests.optimizer.support import options, server, system

UNLIMITED = OptimizerSpec(unlimited=True)


def stateful(store: Any = None, **fields: Any) -> StatefulService:
    return StatefulService(store or MemoryRecords(), options(**fields))


def spec(name: str = "s", rate: float = 120, **fields: Any) -> ServerSpec:
    return read(ServerSpec, server(name, rate, **fields))


def adding(one: ServerSpec) -> Callable[[System], System]:
    return lambda system: system.with_servers([one])


def removing(name: str) -> Callable[[System], System]:
    """Also if another thread was quicker."""
    return lambda s: replace(s, servers={n: v for n, v in s.servers.items() if n != name})


def test_solve_clears_the_desired_allocation_of_servers_without_one() -> None:
    service = stateful()
    stale = {"accelerator": "A", "numReplicas": 7, "cost": 70}
    service.optimize_one(system([server(rate=1e7, desiredAlloc=stale)]))
    assert service.state.system.servers["s"].desired_alloc == AllocationData()


def test_applying_keeps_the_load_and_skips_servers_without_allocation() -> None:
    service = stateful()
    running = {"accelerator": "B", "numReplicas": 9, "cost": 1}
    service.optimize_one(
        system([server(), server("t", model="zz", currentAlloc=running)], unlimited=True)
    )
    service.apply_allocation()
    s, t = (service.state.system.servers[name].current_alloc for name in ("s", "t"))
    assert (s.accelerator, s.num_replicas, s.load.arrival_rate) == ("A", 2, 120)
    assert (t.accelerator, t.num_replicas, t.load.arrival_rate) == ("B", 9, 120)


def test_applying_scales_to_zero_only_what_was_solved_so() -> None:
    service = stateful()
    running = {"accelerator": "A", "numReplicas": 2}
    service.update(lambda _: system([server(rate=0, currentAlloc=running)]))
    service.apply_allocation()
    assert service.state.system.servers["s"].current_alloc.num_replicas == 2
    service.optimize(UNLIMITED)
    service.update(lambda s: s.with_servers([spec("new", 0, currentAlloc=running)]))
    service.apply_allocation()
    assert service.state.system.servers["s"].current_alloc.num_replicas == 0
    assert service.state.system.servers["new"].current_alloc.num_replicas == 2


def test_change_of_the_current_allocation_is_timed_for_stabilisation() -> None:
    now = [100.0]
    service = stateful(clock=lambda: now[0])
    service.update(lambda _: system([server()], unlimited=True))
    assert service.state.changed_at_s == {}
    service.optimize(UNLIMITED)
    service.apply_allocation()
    assert service.state.changed_at_s == {"s": 100.0}
    now[0] = 150.0
    service.update(
        lambda s: s.with_servers(
            [spec(rate=60, currentAlloc={"accelerator": "A", "numReplicas": 2})]
        )
    )
    assert service.state.changed_at_s == {"s": 100.0}
    hold = OptimizerSpec(unlimited=True, hold_minutes=1)
    assert service.optimize(hold)["allocations"]["s"]["numReplicas"] == 2
    for now[0] in (161.0, 10.0):  # at last the clock was set back
        assert service.optimize(hold)["allocations"]["s"]["numReplicas"] == 1


def test_failed_edit_leaves_the_state_alone() -> None:
    service = stateful()
    before = service.state

    def fail(_: Any) -> Any:
        raise NotFound("server", "zz")

    with pytest.raises(NotFound):
        service.update(fail)
    assert service.state is before


def test_what_cannot_be_saved_is_not_shown(sqlite_path: Path) -> None:
    store = SqliteRecords(sqlite_path)
    service = stateful(store)
    service.update(lambda _: system([server()]))
    store.close()
    with pytest.raises(StoreFailed):
        service.optimize(UNLIMITED)
    assert service.state.system.servers["s"].desired_alloc == AllocationData()


class UnsureRecords(MemoryRecords):
    """Loses answers: what was to be saved then may be saved all the same."""

    fate = "answered"

    def commit(self, changes: Iterable[Record]) -> None:
        if self.fate != "lost":
            super().commit(changes)
        if self.fate != "answered":
            raise StoreFailed(self.fate)


@given(
    st.lists(
        st.tuples(st.sampled_from(["answered", "lost", "late"]), st.sampled_from("abc"),
                  st.integers(0, 2)),
        max_size=8,
    )
)  # fmt: skip
def test_what_is_saved_is_what_is_shown_whichever_answers_were_lost(
    steps: list[tuple[str, str, int]],
) -> None:
    store = UnsureRecords()
    service = stateful(store)
    for store.fate, name, rate in [*steps, ("answered", "a", 3)]:
        with suppress(StoreFailed):
            service.update(adding(spec(name, rate)) if rate else removing(name))
    assert from_records(store.load()).system.servers == service.state.system.servers


def test_expected_state_must_be_the_present_one() -> None:
    service = stateful()
    with pytest.raises(StateChanged):
        service.replace_state(SystemState(), lambda _: False)


def test_stateless_solves_do_not_touch_each_other() -> None:
    service = StatelessService(options())
    wrong: list[Any] = []
    start = threading.Barrier(8)

    def solve(number: int) -> None:
        start.wait()
        for turn in range(10):
            rate = 100 + 50 * number + turn
            body = service.optimize_one(system([server(f"s{number}", rate)], unlimited=True))
            if list(body["allocations"]) != [f"s{number}"] or (
                body["allocations"][f"s{number}"]["load"]["arrivalRate"] != rate
            ):
                wrong.append(body)

    threads = [threading.Thread(target=solve, args=(n,), name=f"solve-{n}") for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert len(service.state.system.servers) == 1


@pytest.mark.parametrize("kind", [stateful, lambda: StatelessService(options())])
def test_a_large_solve_is_refused_where_another_takes_too_long(
    kind: Callable[[], OptimizerService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.service.SMALL_PAIRS", 0)
    monkeypatch.setattr("common.turns.WAIT_S", 0.01)
    service, one = kind(), system([server()], unlimited=True)
    is_solving, may_end = threading.Event(), threading.Event()

    def held(*given: Any) -> Answer:
        is_solving.set()
        assert may_end.wait(60)
        return optimize(*given)

    monkeypatch.setattr("optimizer.service.optimize", held)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.optimize_one, one)
        try:
            assert is_solving.wait(60)
            with pytest.raises(TooManyQuestions):
                service.optimize_one(one)
        finally:
            may_end.set()
        assert list(first.result(60)["allocations"]) == ["s"]
    assert list(service.optimize_one(one)["allocations"]) == ["s"]


def test_edits_wait_for_a_large_solve_only_so_long_and_reads_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = system([server()])
    monkeypatch.setattr("optimizer.service.SMALL_PAIRS", len(large.accelerators) - 1)
    service = stateful()
    service.update(lambda _: large)
    is_solving, may_end = threading.Event(), threading.Event()

    def held(*given: Any) -> Answer:
        is_solving.set()
        assert may_end.wait(60)
        return optimize(*given)

    monkeypatch.setattr("optimizer.service.optimize", held)
    with ThreadPoolExecutor(3 + MAX_WAITING) as pool:
        solved = pool.submit(service.optimize, UNLIMITED)
        assert is_solving.wait(60)
        monkeypatch.setattr("optimizer.service.WAIT_S", 0.01)
        with pytest.raises(TooManyQuestions):
            service.update(adding(spec("late")))
        monkeypatch.setattr("optimizer.service.WAIT_S", 60.0)
        monkeypatch.setattr("common.turns.WAIT_S", 60.0)
        names = [f"s{number}" for number in range(2 + MAX_WAITING)]
        edits = [pool.submit(service.update, adding(spec(name))) for name in names]
        # As many as may wait do, one of them for the lock; the one too many is refused at once.
        refused = next(as_completed(edits, 60))
        assert isinstance(refused.exception(), TooManyQuestions)
        assert set(service.state.system.servers) == {"s"}
        with pytest.raises(TooManyQuestions):
            service.apply_allocation()
        may_end.set()
        assert list(solved.result(60)["allocations"]) == ["s"]
        done = [each for each in edits if each.exception(60) is None]
    assert len(done) == 1 + MAX_WAITING
    assert len(service.state.system.servers) == 2 + MAX_WAITING


def test_a_small_solve_does_not_wait_for_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    small = system([server()])
    monkeypatch.setattr("optimizer.service.SMALL_PAIRS", len(small.accelerators))
    solves, flags = StatelessService(options()), OptimizerSpec()
    large = small.with_servers([spec("t")])
    monkeypatch.setattr("common.turns.WAIT_S", 0.01)
    with solves.turn(large, flags):
        with solves.turn(small, flags), solves.turn(small, OptimizerSpec(milp_solver=True)):
            pass
        with pytest.raises(TooManyQuestions), solves.turn(large, flags):
            pass


def test_sixty_four_threads_leave_one_consistent_state_in_memory_and_on_disk(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixed adds, removals and solves. Every answer is about servers of one moment and keeps
    within the cards; the store holds what memory holds."""
    for waits in ("optimizer.service.WAIT_S", "common.turns.WAIT_S"):
        monkeypatch.setattr(waits, 90.0)  # the machine may be slow
    wrong: list[Any] = []
    with closing(SqliteRecords(sqlite_path)) as store:
        service = stateful(store)
        service.update(lambda _: system([]))
        start = threading.Barrier(64)

        def work(number: int) -> None:
            rng = random.Random(number)
            start.wait()
            for _ in range(12):
                name = f"s{rng.randrange(20)}"
                match rng.randrange(4):
                    case 0:
                        service.update(adding(spec(name, rng.uniform(1, 400))))
                    case 1:
                        service.update(removing(name))
                    case 2:
                        check(service.optimize(OptimizerSpec()))
                    case _:
                        servers = [server(f"{number}-{i}", 60) for i in range(3)]
                        check(service.optimize_one(system(servers)), number)

        def check(body: Mapping[str, Any], number: int | None = None) -> None:
            names = body["allocations"].keys() | body["unallocated"].keys()
            owners = {name.partition("-")[0] for name in names if "-" in name}
            used = {use["type"]: use["count"] for use in body["summary"]["allocationByType"]}
            if (
                any(used.get(t, 0) > 10 for t in "AB")
                or len(owners) > 1
                or (number is not None and owners != {str(number)})
            ):
                wrong.append(body)

        threads = [threading.Thread(target=work, args=(n,), name=f"mix-{n}") for n in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        in_memory = service.state.dump()
    assert not wrong
    with closing(SqliteRecords(sqlite_path)) as reopened:
        assert stateful(reopened).state.dump() == in_memory
