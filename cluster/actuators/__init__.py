"""`Actuator`: starts and stops replicas, as local processes, on Ray or on Kubernetes."""

from collections.abc import Sequence
from typing import Protocol

from cluster.replicas import Group, Outcome, Replica


class Actuator(Protocol):
    """Starts and stops replicas. Controller thread only.

    All calls are idempotent and bounded in time. They raise ActuatorUnusable only if the machines
    cannot be reached at all; later calls list every replica that was started before that.
    """

    def replicas(self) -> Sequence[Replica]:
        """Returns all replicas, started by any process, sorted by name."""

    def start(self, group: Group, count: int) -> Outcome:
        """Scale `group` up to at least `count` replicas; never stop one. Returns at once: a new
        replica is listed as starting until it answers /ready."""

    def stop(self, group: Group, count: int) -> None:
        """Scale `group` down to at most `count` replicas; never start one. A stopped replica is
        listed as draining: it leaves the proxy's upstreams, finishes its streams and exits."""

    def close(self) -> None:
        """Release the actuator's own resources. Replicas keep running."""
