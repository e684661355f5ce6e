"""Loads that fail or take too long, and what operators ask for."""

import math
from dataclasses import replace

import pytest

from inference_api.bundle.members import (
    EndRows,
    Eviction,
    Failure,
    LoadMember,
    MemberState,
    Refuse,
    Unload,
    UnloadMode,
)
from inference_api.errors import HearthError, MemberBusy, MemberLoading, MemberPinned
from tests.inference_api.bundle.simulated_bundle import (
    NEEDS,
    POLICY,
    LoadOutcome,
    SimulatedBundle,
    bundle,
    with_residents,
)


def test_load_that_fails_refuses_its_waiters_once_with_the_reason() -> None:
    simulated = bundle()
    simulated.outcomes["a"].append(LoadOutcome(1, Failure.LOAD))
    requests = [simulated.ask("a") for _ in range(3)]
    simulated.run(3)
    assert [each.end for each in requests] == ["no luck"] * 3
    assert simulated.names(Refuse) == ["a"]
    snapshot = simulated.residency.snapshot().members["a"]
    assert (snapshot.state, snapshot.reason) == (MemberState.FAILED, "no luck")
    assert snapshot.failures == {Failure.LOAD: 1}
    assert simulated.residency.snapshot().used_bytes == 0


def failed() -> SimulatedBundle:
    simulated = bundle()
    simulated.outcomes["a"].append(LoadOutcome(1, Failure.LOAD))
    simulated.ask("a")
    simulated.run(3)
    simulated.effects.clear()
    return simulated


def test_failed_member_refuses_at_once() -> None:
    simulated = failed()
    simulated.ask("a")
    assert simulated.turn() == [Refuse("a", "no luck")]
    assert simulated.turn() == []


def test_failed_member_is_tried_again_when_an_operator_asks() -> None:
    simulated = failed()
    assert not simulated.residency.ask_load("a", simulated.now_s)
    assert simulated.residency.snapshot().members["a"].reason == ""
    simulated.run(3)
    assert simulated.state("a") is MemberState.RESIDENT


def test_failed_member_is_tried_again_when_its_source_has_changed() -> None:
    simulated = failed()
    simulated.residency.source_changed("a")
    simulated.run_until_served(request := simulated.ask("a"))
    assert request.end == ""


def test_packing_that_fails_without_a_load_is_a_failure_too() -> None:
    simulated = bundle()
    simulated.residency.packing("a")
    simulated.residency.load_failed("a", "disk full", simulated.now_s)
    simulated.ask("a")
    assert simulated.turn() == [Refuse("a", "disk full")]


def test_load_that_takes_too_long_refuses_its_waiters_and_may_come_later() -> None:
    simulated = bundle()
    simulated.load_s["a"] = math.inf
    request = simulated.ask("a")
    simulated.run(POLICY.load_timeout_s + 1)
    assert request.end == "it was not loaded within load_timeout_s=120"
    assert simulated.state("a") is MemberState.FAILED
    assert simulated.residency.snapshot().used_bytes == 100, "the loader may still fill it"
    simulated.load_s["a"] = 1
    simulated.turn()
    assert simulated.state("a") is MemberState.RESIDENT
    simulated.run_until_served(simulated.ask("a"))


def test_load_that_takes_too_long_may_fail_later() -> None:
    simulated = bundle()
    simulated.load_s["a"] = math.inf
    simulated.ask("a")
    simulated.run(POLICY.load_timeout_s + 1)
    simulated.outcomes["a"].append(LoadOutcome(0, Failure.LOAD))
    simulated.turn()
    assert simulated.residency.snapshot().members["a"].reason == "no luck"
    assert simulated.residency.snapshot().used_bytes == 0


def test_late_failure_leaves_the_try_that_was_asked_for_since() -> None:
    simulated = bundle()
    simulated.load_s["a"] = math.inf
    simulated.ask("a")
    simulated.run(POLICY.load_timeout_s + 1)
    simulated.residency.ask_load("a", simulated.now_s)
    simulated.turn()
    simulated.outcomes["a"].append(LoadOutcome(0, Failure.LOAD))
    simulated.load_s["a"] = 1
    simulated.run(3)
    assert simulated.names(LoadMember) == ["a", "a"]
    assert simulated.state("a") is MemberState.RESIDENT


def test_whoever_waits_behind_a_loader_that_hangs_is_told_so_and_is_not_failed() -> None:
    simulated = bundle()
    simulated.load_s["a"] = math.inf
    simulated.ask("a")
    simulated.run(POLICY.load_timeout_s + 1)
    request = simulated.ask("b")
    simulated.run(POLICY.load_timeout_s + 2)
    assert request.end == "a load before it took longer than load_timeout_s=120"
    assert simulated.state("b") is MemberState.ABSENT
    simulated.load_s["a"] = 1
    simulated.run_until_served(request := simulated.ask("b"))
    assert request.end == ""


def test_load_begins_when_the_loader_has_nothing_else_to_do() -> None:
    simulated = with_residents("a")
    simulated.unload_s = 3
    simulated.residency.ask_unload("a", UnloadMode.IDLE, simulated.now_s)
    simulated.turn()
    simulated.ask("b")
    simulated.run(2)
    assert simulated.effects == [Unload("a")]
    simulated.run(2)
    assert simulated.effects == [Unload("a"), LoadMember("b")]


def test_loader_that_gets_on_is_waited_for() -> None:
    large = replace(NEEDS, weights_bytes=190)
    simulated = with_residents("ab", "abc", c=large)
    simulated.unload_s = 100
    request = simulated.ask("c")
    simulated.run_until_served(request)
    assert request.end == ""
    assert simulated.now_s - request.arrived_s > POLICY.load_timeout_s


def test_residents_borrow_rows_while_the_loader_hangs() -> None:
    simulated = with_residents("a")
    simulated.load_s["b"] = math.inf
    simulated.ask("b")
    simulated.run(POLICY.load_timeout_s + 1)
    simulated.ask("c")
    for _ in range(5):
        simulated.ask("a")
    simulated.turn()
    assert len(simulated.running) == 5


def test_load_short_of_memory_is_tried_once_more_without_those_that_are_idle() -> None:
    simulated = with_residents("a")
    simulated.outcomes["b"].append(LoadOutcome(1, Failure.MEMORY))
    request = simulated.ask("b")
    simulated.run_until_served(request)
    assert [type(each).__name__ for each in simulated.effects] == [
        "LoadMember",
        "Unload",
        "LoadMember",
    ]
    assert simulated.num_evictions()[Eviction.MEMORY] == 1


def test_load_short_of_memory_twice_fails() -> None:
    simulated = with_residents("a")
    simulated.outcomes["b"] += [LoadOutcome(1, Failure.MEMORY), LoadOutcome(1, Failure.MEMORY)]
    request = simulated.ask("b")
    simulated.run(5)
    assert request.end == "no luck"
    assert simulated.residency.snapshot().members["b"].failures == {Failure.MEMORY: 1}
    assert simulated.state("b") is MemberState.FAILED


# --- operators -----------------------------------------------------------------------------


def test_asking_for_a_load_twice_changes_nothing() -> None:
    simulated = bundle()
    for _ in range(2):
        assert not simulated.residency.ask_load("a", simulated.now_s)
    simulated.turn()
    assert not simulated.residency.ask_load("a", simulated.now_s)
    simulated.run(3)
    assert simulated.residency.ask_load("a", simulated.now_s)
    simulated.run(1)
    assert simulated.effects == [LoadMember("a")]


def test_what_an_operator_asked_for_is_done_once() -> None:
    simulated = bundle("ab", replace(POLICY, fast_memory_limit_bytes=110))
    simulated.residency.ask_load("a", simulated.now_s)
    simulated.run(3)
    simulated.ask("b")
    simulated.run(10)
    assert simulated.effects == [LoadMember("a"), Unload("a"), LoadMember("b")]


def test_what_an_operator_asked_for_and_failed_is_not_done_later() -> None:
    simulated = bundle()
    simulated.outcomes["a"].append(LoadOutcome(1, Failure.LOAD))
    simulated.residency.ask_load("a", simulated.now_s)
    simulated.run(3)
    simulated.residency.source_changed("a")
    simulated.run(3)
    assert simulated.effects == [LoadMember("a")]


def test_what_an_operator_drains_leaves_whoever_wanted_its_room() -> None:
    simulated = with_residents("ab")
    for name in "ab":
        simulated.ask(name, run_s=30)
    simulated.turn()
    request = simulated.ask("c")
    simulated.run(POLICY.patience_s + 1)
    assert simulated.state("a") is MemberState.DRAINING
    simulated.residency.ask_unload("a", UnloadMode.DRAIN, simulated.now_s)
    simulated.cancel(request)
    simulated.run(30)
    assert simulated.state("a") is MemberState.ON_DISK


def refusal(simulated: SimulatedBundle, name: str, mode: UnloadMode) -> HearthError:
    with pytest.raises(HearthError) as refused:
        simulated.residency.ask_unload(name, mode, simulated.now_s)
    assert refused.value.status == 409
    return refused.value


def test_pinned_member_is_not_unloaded() -> None:
    simulated = with_residents("a", a=replace(NEEDS, is_pinned=True))
    for mode in UnloadMode:
        error = refusal(simulated, "a", mode)
        assert isinstance(error, MemberPinned)
        assert str(error).startswith("a is pinned")


def test_member_that_is_loading_is_not_unloaded() -> None:
    simulated = bundle()
    simulated.ask("a")
    simulated.turn()
    assert isinstance(refusal(simulated, "a", UnloadMode.DRAIN), MemberLoading)


def test_busy_member_is_not_unloaded_unless_that_is_said() -> None:
    simulated = with_residents("a", a=replace(NEEDS, rows_max=3))
    for _ in range(5):
        simulated.ask("a", run_s=9)
    simulated.turn()
    error = refusal(simulated, "a", UnloadMode.IDLE)
    assert isinstance(error, MemberBusy)
    assert str(error).startswith("a: 3 running, 2 waiting")


def test_idle_member_is_unloaded_when_that_is_asked() -> None:
    simulated = with_residents("a")
    simulated.residency.ask_unload("a", UnloadMode.IDLE, simulated.now_s)
    assert simulated.turn() == [Unload("a")]
    simulated.run(1)
    assert simulated.state("a") is MemberState.ON_DISK
    assert simulated.residency.snapshot().used_bytes == 0
    simulated.residency.ask_unload("a", UnloadMode.IDLE, simulated.now_s)
    assert simulated.turn() == []


def test_drained_member_ends_its_rows_and_comes_back_for_who_waits() -> None:
    simulated = with_residents("a")
    running = simulated.ask("a", run_s=5)
    simulated.turn()
    simulated.residency.ask_unload("a", UnloadMode.DRAIN, simulated.now_s)
    waiting = simulated.ask("a")
    simulated.run_until_served(waiting)
    assert simulated.effects == [Unload("a"), LoadMember("a")]
    assert running.end == "done"
    assert waiting.switch is not None
    assert simulated.num_evictions()[Eviction.OPERATOR] == 1


def test_forced_member_has_its_rows_ended() -> None:
    simulated = with_residents("a")
    running = simulated.ask("a", run_s=500)
    simulated.turn()
    simulated.residency.ask_unload("a", UnloadMode.FORCE, simulated.now_s)
    assert simulated.turn() == [EndRows("a")]
    assert running.end == "cut"
    assert simulated.turn() == [Unload("a")]
