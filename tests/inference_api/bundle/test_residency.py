"""Who is loaded, and for whose sake somebody leaves."""

from dataclasses import replace

import pytest

from inference_api.bundle.members import Eviction, LoadMember, MemberState, Unload, UnloadMode
from tests.inference_api.bundle.simulated_bundle import NEEDS, POLICY, bundle, with_residents


def test_request_to_an_absent_member_has_it_loaded_and_starts_when_it_is_ready() -> None:
    simulated = bundle()
    request = simulated.ask("a")
    assert simulated.turn() == [LoadMember("a")]
    assert simulated.state("a") is MemberState.LOADING
    assert not simulated.residency.is_settled
    simulated.run_until_served(request)
    assert simulated.state("a") is MemberState.RESIDENT


def test_packing_is_seen_on_its_way() -> None:
    simulated = bundle()
    assert simulated.state("a") is MemberState.ABSENT
    request = simulated.ask("a")
    simulated.turn()
    simulated.residency.packing("a")
    assert simulated.state("a") is MemberState.PACKING
    simulated.run_until_served(request)
    assert simulated.state("a") is MemberState.RESIDENT


def test_one_load_at_a_time_and_who_waits_longest_is_first() -> None:
    simulated = bundle("abcd")
    simulated.ask("c")
    simulated.turn()
    simulated.ask("b")
    simulated.turn()
    simulated.ask("a")
    simulated.ask("b")
    simulated.run(2.5)
    assert simulated.names(LoadMember) == ["c", "b"]


def test_head_that_leaves_before_the_load_begins_has_the_next_chosen_anew() -> None:
    simulated = with_residents("ab", "abcd")
    busy = [simulated.ask(name, run_s=5) for name in "ab"]
    simulated.turn()
    first = simulated.ask("c")
    simulated.turn()
    simulated.ask("d")
    simulated.turn()
    assert simulated.residency.snapshot().loading_next == "c"
    simulated.cancel(first)
    simulated.turn()
    assert simulated.residency.snapshot().loading_next == "d"
    simulated.run_until_served(*busy, *simulated.queues["d"])
    assert simulated.names(LoadMember) == ["d"]


def test_victims_that_still_drain_stay_when_their_cause_has_left() -> None:
    simulated = with_residents("ab", "abc")
    busy = [simulated.ask(name, run_s=60) for name in "ab"]
    simulated.turn()
    request = simulated.ask("c")
    simulated.run(POLICY.patience_s + 1)
    assert MemberState.DRAINING in simulated.states().values()
    simulated.cancel(request)
    simulated.turn()
    assert simulated.state("a") is simulated.state("b") is MemberState.RESIDENT
    simulated.run(1)
    assert not simulated.effects
    assert all(each in simulated.running for each in busy)


def test_cancel_while_loading_lets_the_load_end_idle_and_leave_at_once() -> None:
    simulated = with_residents("a")
    simulated.ask("a", run_s=100)
    simulated.turn()
    request = simulated.ask("b")
    simulated.turn()
    assert simulated.state("b") is MemberState.LOADING
    simulated.cancel(request)
    simulated.run(1.5)
    assert simulated.state("b") is MemberState.RESIDENT
    simulated.ask("c")
    assert simulated.turn() == [Unload("b")], "its residence is waived"


def test_free_memory_is_taken_before_anybody_leaves() -> None:
    simulated = with_residents("a")
    simulated.ask("b")
    simulated.run(3)
    assert simulated.names(LoadMember) == ["b"]
    assert not simulated.names(Unload)


def test_idle_member_least_recently_used_leaves() -> None:
    simulated = with_residents("ab")
    simulated.run_until_served(simulated.ask("a"))
    simulated.run(3)
    request = simulated.ask("c")
    simulated.run_until_served(request)
    assert simulated.names(Unload) == ["b"]
    assert simulated.num_evictions()[Eviction.IDLE] == 1


def test_no_more_leave_than_is_needed() -> None:
    small, large = replace(NEEDS, weights_bytes=20), replace(NEEDS, weights_bytes=150)
    policy = replace(POLICY, fast_memory_limit_bytes=300)
    simulated = with_residents("abc", "abcd", policy, a=small, b=large, d=large)
    simulated.run_until_served(simulated.ask("d"))
    assert simulated.names(Unload) == ["b"], "a was idle for longer, and is not enough"


def test_nobody_leaves_as_long_as_that_would_not_make_room() -> None:
    policy = replace(POLICY, fast_memory_limit_bytes=210)
    large = replace(NEEDS, weights_bytes=190)
    simulated = with_residents("ab", "abc", policy, c=large)
    simulated.ask("b", run_s=5)
    simulated.turn()
    simulated.ask("c")
    simulated.run(4)
    assert not simulated.names(Unload)
    simulated.run(2)
    assert sorted(simulated.names(Unload)) == ["a", "b"]


def test_idle_member_stays_for_its_residence() -> None:
    simulated = bundle("ab", replace(POLICY, fast_memory_limit_bytes=110))
    simulated.run_until_served(simulated.ask("a", run_s=0))
    ready_s = simulated.now_s
    simulated.ask("b")
    while not simulated.names(Unload):
        simulated.turn()
    assert simulated.now_s - ready_s == pytest.approx(4.0), "four loads of one second"


def test_quick_loads_stay_for_the_shortest_residence() -> None:
    simulated = bundle("ab", replace(POLICY, fast_memory_limit_bytes=110))
    simulated.load_s["a"] = 0.25
    simulated.run_until_served(simulated.ask("a", run_s=0))
    ready_s = simulated.now_s
    simulated.ask("b")
    while not simulated.names(Unload):
        simulated.turn()
    assert simulated.now_s - ready_s == pytest.approx(POLICY.min_residence_s)


def test_pinned_member_stays_whoever_waits() -> None:
    simulated = with_residents("ab", a=replace(NEEDS, is_pinned=True))
    simulated.run_until_served(simulated.ask("b"))
    simulated.run_until_served(simulated.ask("c"))
    assert simulated.names(Unload) == ["b"]


def test_weights_that_two_share_are_counted_once() -> None:
    shared = replace(NEEDS, shared={"k": 90})
    simulated = with_residents("ab", "abc", a=shared, b=shared)
    assert simulated.residency.snapshot().used_bytes == 90 + 2 * (8 + 2)
    simulated.run_until_served(simulated.ask("c"))
    assert not simulated.names(Unload), "there is room beside both"


def test_one_of_two_that_share_frees_little() -> None:
    shared, policy = replace(NEEDS, shared={"k": 90}), replace(POLICY, fast_memory_limit_bytes=150)
    simulated = with_residents("ab", "abc", policy, a=shared, b=shared)
    simulated.run_until_served(simulated.ask("c"))
    assert sorted(simulated.names(Unload)) == ["a", "b"]


def test_busy_members_leave_for_the_impatient_the_longest_resident_first() -> None:
    simulated = with_residents("ba", "abc")
    for name in "ab":
        simulated.ask(name, run_s=60)
    simulated.turn()
    simulated.ask("c")
    simulated.run(POLICY.patience_s + 1)
    assert simulated.state("b") is MemberState.DRAINING
    assert simulated.state("a") is MemberState.RESIDENT


def test_nobody_has_to_leave_for_who_came_later_than_its_own_waiters() -> None:
    policy, two_rows = replace(POLICY, fast_memory_limit_bytes=110), replace(NEEDS, rows_max=2)
    simulated = with_residents("a", "ab", policy, a=two_rows)
    for _ in range(2):
        simulated.ask("a", run_s=40)
    older = simulated.ask("a", run_s=5)
    simulated.turn()
    simulated.ask("b")
    simulated.run(30)
    assert simulated.state("a") is MemberState.RESIDENT
    simulated.run_until_served(older)
    simulated.turn()
    assert simulated.state("a") is MemberState.DRAINING


def test_who_drains_others_waits_for_their_rows_and_takes_nobody_else() -> None:
    policy = replace(POLICY, fast_memory_limit_bytes=320)
    pinned, large = replace(NEEDS, is_pinned=True), replace(NEEDS, weights_bytes=110)
    simulated = with_residents("abd", "abcd", policy, a=pinned, c=large)
    for _ in range(16):
        simulated.ask("a", run_s=40)
    simulated.ask("b", run_s=30)
    simulated.ask("d", run_s=15)
    simulated.turn()
    request = simulated.ask("c")
    simulated.run_until_served(request)
    assert simulated.names(Unload) == ["b"]


def test_room_that_comes_from_elsewhere_spares_who_still_drains() -> None:
    simulated = with_residents("ab", "abc")
    running, _ = (simulated.ask(name, run_s=60) for name in "ab")
    simulated.turn()
    request = simulated.ask("c")
    simulated.run(POLICY.patience_s + 1)
    assert simulated.state("a") is MemberState.DRAINING
    simulated.load_s["c"] = 3
    simulated.residency.ask_unload("b", UnloadMode.FORCE, simulated.now_s)
    simulated.run(2)
    assert simulated.state("c") is MemberState.LOADING
    assert simulated.state("a") is MemberState.RESIDENT
    simulated.run_until_served(request)
    assert running in simulated.running
    simulated.run_until_served(later := simulated.ask("a"))
    assert later.switch is None


def test_who_is_being_unloaded_goes_on_when_the_cause_has_left() -> None:
    simulated = with_residents("ab")
    simulated.unload_s = 1
    request = simulated.ask("c")
    simulated.turn()
    simulated.cancel(request)
    simulated.turn()
    assert simulated.state("a") is MemberState.DRAINING
    simulated.run(2)
    assert simulated.state("a") is MemberState.ON_DISK


# --- what a request paid -------------------------------------------------------------------


def test_switching_time_is_the_wait_for_its_turn_the_room_and_the_load() -> None:
    simulated = with_residents("ab")
    simulated.run_until_served(simulated.ask("a", run_s=9))
    simulated.ask("b", run_s=5)
    simulated.turn()
    first = simulated.ask("c")
    simulated.run(2)
    second = simulated.ask("c")
    simulated.run_until_served(first, second)
    assert first.switch is not None
    assert second.switch is not None
    assert first.started_s is not None
    assert first.switch.switching_time_s == pytest.approx(first.started_s - first.arrived_s)
    assert first.switch.load_s == pytest.approx(1.0)
    assert first.switch.evict_s > 4
    assert first.switch.from_name == "b", "it was the last to serve"
    assert first.switch.is_initiator
    assert not second.switch.is_initiator
    assert second.switch.wait_s == 0
    assert second.switch.switching_time_s == pytest.approx(first.switch.switching_time_s - 2)


def test_request_to_a_resident_pays_nothing_whatever_it_waited_for() -> None:
    simulated = with_residents("a", "ab", replace(POLICY, user_rows=4))
    simulated.load_s["b"] = 3
    for _ in range(6):
        simulated.ask("a", run_s=4)
    request = simulated.ask("a", run_s=4)
    simulated.run_until_served(request)
    assert request.switch is None


def test_request_pays_nothing_for_a_reload_after_it_came_to_a_resident() -> None:
    simulated = with_residents("a", "a", a=replace(NEEDS, rows_max=2))
    for _ in range(2):
        simulated.ask("a", run_s=5)
    simulated.turn()
    early = simulated.ask("a")
    simulated.turn()
    simulated.residency.ask_unload("a", UnloadMode.DRAIN, simulated.now_s)
    simulated.turn()
    late = simulated.ask("a")
    simulated.run_until_served(early, late)
    assert simulated.names(LoadMember) == ["a"]
    assert early.switch is None
    assert late.switch is not None
