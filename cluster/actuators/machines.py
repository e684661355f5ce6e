"""`Machines`: where the processes of replicas run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.replicas import Group, Recipe


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica as its machine knows it. `url` is None until it is known."""

    name: str
    group: Group
    url: str | None = None
    is_leaving: bool = False
    ended: str | None = None
    """Why its process has ended, if nothing restarts it automatically."""


class Machines(Protocol):
    """One thread at a time. Every call is idempotent and bounded in time, and raises
    ActuatorUnusable if the machines cannot be reached at all."""

    def placed(self) -> Sequence[Placed]:
        """All replicas that were placed, by whomever, and not removed since."""

    def place(self, name: str, group: Group, recipe: Recipe) -> str | None:
        """Start a process. If there is no room, leaves nothing behind and returns the reason."""

    def mark_leaving(self, name: str) -> None:
        """Record that it is being stopped; the record outlives this process."""

    def terminate(self, name: str) -> None:
        """Make its process drain and exit."""

    def remove(self, name: str) -> None:
        """Kill what is left of it, free its resources and forget it."""

    def close(self) -> None:
        """Disconnect from the machines. Processes keep running."""
