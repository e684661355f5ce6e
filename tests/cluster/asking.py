"""Asks an actuator for replicas as the controller does: again, when some had no room or failed."""

from collections.abc import Sequence

from cluster.actuators import Actuator
from cluster.controller.rollout import RUNNING
from cluster.replicas import Group, Outcome, Replica, ReplicaState
from lab.kit.servers import eventually


def in_states(actuator: Actuator, group: Group, wanted: Sequence[ReplicaState]) -> list[Replica]:
    """The group's replicas, once they are in these states; asks for those that are missing."""
    here: list[Replica] = []
    outcome = Outcome()

    def are_here() -> bool:
        nonlocal outcome
        here[:] = [each for each in actuator.replicas() if each.group == group]
        if sum(each.state in {*RUNNING, *wanted} for each in here) < len(wanted):
            outcome = actuator.start(group, len(wanted))
        return [each.state for each in here] == list(wanted)

    eventually(are_here, what=lambda: f"{wanted} of {group} (it has {here}, then {outcome})")
    return here


def ready(actuator: Actuator, group: Group, count: int) -> list[Replica]:
    """Once there are exactly so many of the group, and all are ready."""
    return in_states(actuator, group, [ReplicaState.READY] * count)
