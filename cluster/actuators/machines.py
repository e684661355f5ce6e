"""The seam between tending replicas and where their processes run: `Machines`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.replicas import Group, Recipe


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica as its machine knows it. `url` is None while that is not known."""

    name: str
    group: Group
    url: str | None = None
    is_leaving: bool = False
    ended: str | None = None
    """Why its process has ended, where nobody starts it again by himself."""


class Machines(Protocol):
    """One thread at a time. Every call is idempotent and bounded in time, and raises
    ActuatorUnusable where the machines cannot be reached at all."""

    def placed(self) -> Sequence[Placed]:
        """All that were placed, whoever did it, and not removed since."""

    def place(self, name: str, group: Group, recipe: Recipe) -> str | None:
        """Start a process. Returns why it finds no room, if so; then nothing is left of it."""

    def mark_leaving(self, name: str) -> None:
        """Remember, beyond this process's life, that it is to go."""

    def terminate(self, name: str) -> None:
        """Have its process drain and end."""

    def remove(self, name: str) -> None:
        """Kill what is left of it, give back what it took, forget it."""

    def close(self) -> None:
        """Let go of the machines. Processes run on."""
