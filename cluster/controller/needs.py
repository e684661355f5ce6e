"""Keeps replicas for a while after they were last needed. Controller thread only."""

import math
from collections.abc import Collection, Mapping

from cluster.controller.optimizer import OptimizerReply
from cluster.controller.question import groups_of
from cluster.controller.rollout import Plan


class ReplicaNeeds:
    """Remembers when the optimizer last wanted as many replicas of a server as there are.

    Near a bound of the levels, plans waver from one cycle to the next. To start a replica again
    takes longer than to keep it for the time of a start.
    """

    def __init__(self) -> None:
        self._needed_s: dict[str, float] = {}

    def lost_early(
        self,
        answer: OptimizerReply,
        plan: Plan,
        at_s: float,
        starts_s: Mapping[str, float],
        bound: Collection[str],
    ) -> set[str]:
        """Returns the servers that would lose replicas that were needed less than the time of a
        start ago. An answer says nothing about servers that were `bound` to what they have."""
        early = set()
        for name, allocation in answer.allocations.items():
            if name in bound:
                continue
            wanted = sum(groups_of(name, allocation).values())
            if wanted >= sum(count for group, count in plan.items() if group.server == name):
                self._needed_s[name] = at_s
            elif at_s - self._needed_s.get(name, -math.inf) < starts_s.get(name, 0.0):
                early.add(name)
        return early
