"""From anything that runs to any plan: up first, never below what both sides have in common."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cluster.controller.loop import RETRY_S, Rollout
from cluster.controller.rollout import next_steps
from cluster.replicas import Group, Replica, ReplicaState
from tests.cluster.fleet import MemoryActuator

A, B = Group("s", "A", 32), Group("s", "B", 8)
OTHER = Group("other", "A", 32)


def replicas(group: Group, count: int, state: ReplicaState = ReplicaState.READY) -> list[Replica]:
    return [Replica(f"{group}-{n}-{state}", group, state) for n in range(count)]


def test_what_is_missing_is_started_and_nothing_stopped() -> None:
    assert next_steps(replicas(A, 2), {A: 0, B: 1}, {}) == ({B: 1}, {})


def test_old_replicas_stay_until_all_new_ones_are_ready() -> None:
    both = replicas(A, 2) + replicas(B, 1) + replicas(B, 1, ReplicaState.STARTING)
    assert next_steps(both, {A: 0, B: 2}, {}) == ({}, {})
    both = replicas(A, 2) + replicas(B, 2)
    assert next_steps(both, {A: 0, B: 2}, {}) == ({}, {A: 0})


def test_fewer_of_the_same_are_stopped_at_once() -> None:
    assert next_steps(replicas(A, 3), {A: 1}, {}) == ({}, {A: 1})


def test_servers_without_a_plan_are_left_alone() -> None:
    assert next_steps(replicas(OTHER, 3) + replicas(A, 1), {A: 1}, {}) == ({}, {})


def test_what_found_no_room_is_not_asked_for_again_and_the_old_stay_in_proportion() -> None:
    there = replicas(A, 4) + replicas(B, 1)
    assert next_steps(there, {A: 0, B: 2}, {B: 1}) == ({}, {A: 2})
    assert next_steps(replicas(A, 4), {A: 0, B: 2}, {B: 2}) == ({}, {})


def test_a_failed_replica_is_started_anew() -> None:
    there = replicas(A, 1) + replicas(A, 1, ReplicaState.FAILED)
    assert next_steps(there, {A: 2}, {}) == ({A: 2}, {})


COUNTS = st.integers(0, 5)


@given(before=st.tuples(COUNTS, COUNTS), after=st.tuples(COUNTS, COUNTS))
def test_any_plan_is_reached_and_readiness_never_falls_below_both(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    actuator = MemoryActuator()
    for group, count in zip((A, B), before, strict=True):
        actuator.start(group, count)
    actuator.settle()
    plan = dict(zip((A, B), after, strict=True))
    rollout, least = Rollout(actuator, dry_run=False), min(sum(before), sum(after))
    for _ in range(6):
        rollout.step(plan)
        actuator.settle()
        assert sum(actuator.ready().values()) >= least
    assert actuator.ready() == +Counter(plan)


def test_a_dry_run_starts_and_stops_nothing() -> None:
    actuator = MemoryActuator()
    Rollout(actuator, dry_run=True).step({A: 3})
    assert actuator.calls == []


def test_what_is_unplaced_is_tried_again_by_another_plan_or_when_there_is_room() -> None:
    actuator = MemoryActuator({"A": 3})
    rollout = Rollout(actuator, dry_run=False)
    actuator.start(OTHER, 1)
    for _ in range(4):
        rollout.step({A: 3})
        actuator.settle()
    assert [call for call in actuator.calls if call[1] == A] == [("start", A, 3)]
    assert rollout.unplaced[A].unplaced == 1
    actuator.lose(actuator.replicas()[0].name)  # the other's
    rollout.step({A: 3})
    assert (rollout.unplaced, sum(each.group == A for each in actuator.replicas())) == ({}, 3)


def test_what_is_unplaced_is_tried_again_after_a_while() -> None:
    """Machines join, and one that is busy may not tell its room in time."""
    actuator, now_s = MemoryActuator(cards := {"A": 0}), 5.0
    rollout = Rollout(actuator, dry_run=False, clock=lambda: now_s)
    rollout.step({A: 1})
    cards["A"], now_s = 1, now_s + RETRY_S - 0.1
    rollout.step({A: 1})
    assert (rollout.unplaced[A].unplaced, actuator.replicas()) == (1, [])
    now_s += 0.2
    rollout.step({A: 1})
    assert (rollout.unplaced, len(actuator.replicas())) == ({}, 1)


def test_a_swap_on_full_machines_goes_step_by_step_where_there_is_a_little_room() -> None:
    actuator = MemoryActuator({"A": 5})
    new = Group("s", "A", 16)
    actuator.start(A, 4)
    actuator.settle()
    rollout = Rollout(actuator, dry_run=False)
    for _ in range(12):
        rollout.step({A: 0, new: 4})
        actuator.settle()
        assert sum(actuator.ready().values()) >= 3
    assert actuator.ready() == {new: 4}
