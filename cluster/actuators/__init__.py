"""`Actuator`: starts and stops replicas, as local processes, on Ray or on Kubernetes. `Machines`:
where the processes of replicas run, except on Kubernetes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.replicas import Group, Outcome, Recipe, Replica


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


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica on its machine. `url` is None until it is known."""

    name: str
    group: Group
    url: str | None = None
    is_leaving: bool = False
    ended: str | None = None
    """Why its process has ended, if it is not restarted automatically."""


class Machines(Protocol):
    """The machines on which replicas run. One thread at a time. Every call is idempotent and
    bounded in time, and raises ActuatorUnusable if the machines cannot be reached at all."""

    def placed(self) -> Sequence[Placed]:
        """Returns all replicas that any process has placed and that were not removed since."""

    def place(self, name: str, group: Group, recipe: Recipe) -> str | None:
        """Start a process. If there is no room, change nothing and return the reason."""

    def mark_leaving(self, name: str) -> None:
        """Record that a replica is being stopped. The record outlives this process."""

    def terminate(self, name: str) -> None:
        """Make a replica's process drain and exit."""

    def remove(self, name: str) -> None:
        """Kill the remaining processes of a replica, free its resources and forget it."""

    def close(self) -> None:
        """Disconnect from the machines. Processes keep running."""
