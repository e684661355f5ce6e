"""From what runs to a plan: up first, then down. Pure: any thread."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.replicas import Group, Replica, ReplicaState

Plan = Mapping[Group, int]
"""How many replicas of each group there are to be; those that are not named: none, of a server
that is planned for, and as many as there are of any other."""

THERE = (ReplicaState.STARTING, ReplicaState.READY)


@dataclass(frozen=True, slots=True)
class RolloutActions:
    """The next calls of the actuator, in this order. Numbers are totals per group."""

    start: tuple[tuple[Group, int], ...] = ()
    stop: tuple[tuple[Group, int], ...] = ()


def running(replicas: Iterable[Replica]) -> Counter[Group]:
    """How many replicas each group has or is about to have."""
    return Counter(each.group for each in replicas if each.state in THERE)


def next_steps(
    replicas: Sequence[Replica], plan: Plan, unplaced: Mapping[Group, int]
) -> RolloutActions:
    """The steps that bring the replicas closer to the plan.

    `unplaced`: replicas of a group without room; they are not requested again. Surplus replicas of
    a server are stopped once their replacements are ready; for replacements without room, a
    matching share stays. Stopping the others may make the room that was missing.
    """
    there = running(replicas)
    ready = Counter(each.group for each in replicas if each.state is ReplicaState.READY)
    start, stop = [], []
    for groups in _by_server(plan, there).values():
        wanted = {group: plan.get(group, 0) for group in groups}
        for group, count in wanted.items():
            if there[group] < count - unplaced.get(group, 0):
                start.append((group, count))
        waits = any(
            ready[group] < min(count, there[group]) or there[group] < count - unplaced.get(group, 0)
            for group, count in wanted.items()
        )
        if waits:
            continue
        total = sum(wanted.values())
        missing = sum(max(count - there[group], 0) for group, count in wanted.items())
        for group, count in wanted.items():
            surplus = there[group] - count
            kept = math.ceil(surplus * missing / total) if total else 0
            if surplus > kept:
                stop.append((group, count + kept))
    return RolloutActions(tuple(start), tuple(stop))


def _by_server(plan: Plan, there: Mapping[Group, int]) -> dict[str, list[Group]]:
    """Groups that are planned or there, of servers that are planned for."""
    planned = {group.server for group in plan}
    groups: dict[str, list[Group]] = defaultdict(list)
    for group in sorted({*plan, *there}):
        if group.server in planned:
            groups[group.server].append(group)
    return groups
