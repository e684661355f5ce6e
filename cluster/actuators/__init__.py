"""The seam between plans and machines: `Actuator`, by local processes, Ray and Kubernetes."""

from collections.abc import Sequence
from typing import Protocol

from cluster.replicas import Group, Outcome, Replica


class Actuator(Protocol):
    """Starts and stops replicas. Controller thread only.

    All calls are idempotent and bounded in time; what a call cannot do is in its answer, and it
    raises ActuatorUnusable only where the machines cannot be reached at all, having changed
    nothing that is not listed afterwards.
    """

    def replicas(self) -> Sequence[Replica]:
        """All replicas that are there, whoever started them, in the order of their names."""

    def start(self, group: Group, count: int) -> Outcome:
        """Have at least `count` replicas of `group`; never stops one. Returns at once: a new
        replica is listed as starting until it answers /ready."""

    def stop(self, group: Group, count: int) -> Outcome:
        """Have at most `count` replicas of `group`; never starts one. A replica that is to go is
        listed as draining: it leaves the proxy's upstreams, ends its streams, then its process."""

    def close(self) -> None:
        """Give up what the actuator itself holds. Replicas go on."""
