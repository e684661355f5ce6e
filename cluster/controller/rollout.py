"""Finds the steps from running replicas to a plan: starts first, then stops. Pure: any thread."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import PlainSerializer
from typing_extensions import TypedDict  # pydantic describes typing's from Python 3.12 on

from cluster.replicas import Group, Replica, ReplicaState


class GroupJson(TypedDict):
    accelerator: str
    user_rows: int
    replicas: int


def groups_json(plan: Mapping[Group, int]) -> list[GroupJson]:
    return [
        {"accelerator": g.accelerator, "user_rows": g.user_rows, "replicas": count}
        for g, count in plan.items()
    ]


Plan = Annotated[Mapping[Group, int], PlainSerializer(groups_json)]
"""The number of replicas of each group. A group that is not in the plan gets none if another group
of its server is; otherwise it does not change."""

RUNNING = (ReplicaState.STARTING, ReplicaState.READY)


def running(replicas: Iterable[Replica]) -> Counter[Group]:
    """Returns how many starting or ready replicas each group has."""
    return Counter(each.group for each in replicas if each.state in RUNNING)


def next_steps(
    replicas: Sequence[Replica], plan: Plan, unplaced: Mapping[Group, int]
) -> tuple[dict[Group, int], dict[Group, int]]:
    """Returns the steps that bring the replicas closer to the plan: the groups to start up to a
    number of replicas, and then those to stop down to one.

    `unplaced` counts replicas without room, by group; they are not requested again. Surplus
    replicas of a server are stopped once their replacements are ready. If some replacements have no
    room, the same share of the surplus stays; stopping the rest may make room.
    """
    present = running(replicas)
    ready = Counter(each.group for each in replicas if each.state is ReplicaState.READY)
    start: dict[Group, int] = {}
    stop: dict[Group, int] = {}
    for groups in _by_server(plan, present).values():
        wanted = {group: plan.get(group, 0) for group in groups}
        due = {g: n for g, n in wanted.items() if present[g] < n - unplaced.get(g, 0)}
        start |= due
        if due or any(ready[group] < min(n, present[group]) for group, n in wanted.items()):
            continue
        total = sum(wanted.values())
        missing = sum(max(count - present[group], 0) for group, count in wanted.items())
        for group, count in wanted.items():
            surplus = present[group] - count
            kept = math.ceil(surplus * missing / total) if total else 0
            if surplus > kept:
                stop[group] = count + kept
    return start, stop


def _by_server(plan: Plan, present: Mapping[Group, int]) -> dict[str, list[Group]]:
    """Returns the planned and present groups of the servers in the plan."""
    planned = {group.server for group in plan}
    groups: dict[str, list[Group]] = defaultdict(list)
    for group in sorted({*plan, *present}):
        if group.server in planned:
            groups[group.server].append(group)
    return groups
