"""Whose requests take the rows that residents share."""

from dataclasses import replace

from inference_api.bundle.members import Unload
from tests.inference_api.bundle.simulated_bundle import NEEDS, POLICY, with_residents


def test_rows_go_first_to_who_uses_the_smallest_part_of_its_own() -> None:
    policy = replace(POLICY, user_rows=6)
    simulated = with_residents("ab", "ab", policy, b=replace(NEEDS, rows_max=4))
    for _ in range(6):
        simulated.ask("a", run_s=100)
        simulated.ask("b", run_s=100)
    simulated.turn()
    names = [each.name for each in simulated.running]
    assert names.count("a") == 4, "twice as many of 16 are a smaller part than two of 4"
    assert names[:2] == ["a", "b"], "a tie is for who waits longest"


def test_rows_that_an_member_is_sure_of_are_kept_for_it() -> None:
    simulated = with_residents("ab", "ab", replace(POLICY, user_rows=8))
    for _ in range(10):
        simulated.ask("a", run_s=100)
    simulated.turn()
    assert len(simulated.running) == 6
    simulated.ask("b", run_s=100)
    simulated.ask("b", run_s=100)
    simulated.turn()
    assert [each.name for each in simulated.running].count("b") == 2


def test_nobody_has_more_rows_than_its_own() -> None:
    simulated = with_residents("a", "ab", a=replace(NEEDS, rows_max=3))
    for _ in range(10):
        simulated.ask("a", run_s=100)
    simulated.turn()
    assert len(simulated.running) == 3


def test_rows_beyond_those_it_is_sure_of_take_memory_while_they_run() -> None:
    policy = replace(POLICY, fast_memory_limit_bytes=105)
    simulated = with_residents("a", "a", policy)
    for _ in range(10):
        simulated.ask("a", run_s=3)
    simulated.turn()
    assert len(simulated.running) == 2 + 5
    assert simulated.residency.snapshot().used_bytes == 105
    simulated.run(10)
    assert simulated.residency.snapshot().used_bytes == 100


def test_nobody_starts_more_than_it_is_sure_of_while_another_waits_for_room() -> None:
    simulated = with_residents("ab", "abc")
    for name in "ab":
        simulated.ask(name, run_s=1000)
    simulated.turn()
    waiting = simulated.ask("c")
    simulated.turn()
    for _ in range(5):
        simulated.ask("b", run_s=1000)
    simulated.turn()
    assert [each.name for each in simulated.running].count("b") == 2
    simulated.cancel(waiting)
    simulated.turn()
    assert [each.name for each in simulated.running].count("b") == 6


def test_rows_are_kept_for_who_is_being_loaded() -> None:
    simulated = with_residents("a", "ab", replace(POLICY, user_rows=4))
    simulated.load_s["b"] = 5
    simulated.ask("b")
    simulated.turn()
    for _ in range(4):
        simulated.ask("a", run_s=60)
    simulated.turn()
    assert len(simulated.running) == 2


def test_rows_that_borrowed_memory_need_only_end_to_make_room() -> None:
    policy = replace(POLICY, fast_memory_limit_bytes=205)
    simulated = with_residents("a", "ab", policy, a=replace(NEEDS, is_pinned=True))
    for _ in range(16):
        simulated.ask("a", run_s=30)
    simulated.turn()
    request = simulated.ask("b")
    simulated.run_until_served(request)
    assert not simulated.names(Unload)
    assert 30 <= simulated.now_s - request.arrived_s <= 32


def test_whom_an_member_was_loaded_for_start_first() -> None:
    policy = replace(POLICY, user_rows=4)
    simulated = with_residents("a", "ab", policy)
    for _ in range(4):
        simulated.ask("a", run_s=10)
    simulated.turn()
    requests = [simulated.ask("b", run_s=10) for _ in range(3)]
    for _ in range(4):
        simulated.ask("a", run_s=10)
    simulated.run_until_served(*requests[:2])
    assert [each.name for each in simulated.running[:2]] == ["b", "b"]


def test_whom_an_member_was_loaded_for_do_not_pass_who_waits_longer_for_a_resident() -> None:
    one_row = replace(NEEDS, rows_min=1, guaranteed_bytes=1)
    simulated = with_residents("a", "ab", replace(POLICY, user_rows=3), a=one_row, b=one_row)
    for run_s in (8, 9, 20):
        simulated.ask("a", run_s=run_s)
    simulated.turn()
    simulated.ask("b", run_s=50)
    oldest = simulated.ask("a")
    simulated.run(7)
    later = simulated.ask("b")
    simulated.run_until_served(oldest, later)
    assert oldest.started_s is not None
    assert later.started_s is not None
    assert oldest.started_s <= later.started_s


def test_row_is_never_taken_from_who_has_it() -> None:
    simulated = with_residents("ab", "ab", replace(POLICY, user_rows=4))
    requests = [simulated.ask("a", run_s=50) for _ in range(2)]
    simulated.turn()
    for _ in range(8):
        simulated.ask("b", run_s=1)
    simulated.run(20)
    assert all(each in simulated.running for each in requests)
