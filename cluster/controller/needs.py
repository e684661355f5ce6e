"""Keeps replicas for a while after they were last needed. Controller thread only."""

import math
from collections.abc import Collection, Mapping

from cluster.controller.optimizer import OptimizerReply
from cluster.controller.question import Standing, groups_of
from cluster.controller.sleep import StartForecast


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
        standing: Standing,
        asleep: Collection[str],
        starts: Mapping[str, StartForecast],
        at_s: float,
    ) -> set[str]:
        """Returns the servers that would lose replicas that were needed less than the time of a
        start ago. Leaves out servers that sleep, and those that the question let lose none, because
        the answer does not say what these need."""
        early = set()
        for name, allocation in answer.allocations.items():
            if name in standing.held or name in standing.unsure or name in asleep:
                continue
            start_s = starts.get(name, StartForecast()).longest_s or 0.0
            if sum(groups_of(name, allocation).values()) >= standing.num_replicas(name):
                self._needed_s[name] = at_s
            elif at_s - self._needed_s.get(name, -math.inf) < start_s:
                early.add(name)
        return early
