"""The nouns of a cluster. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.errors import ConfigFaulty


class ReplicaState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Identical replicas of one server of the optimizer's system, on one of its accelerators.

    `user_rows` is the batch size in the plan. Replicas with other rows belong to another group,
    because rows are fixed when a process starts.
    """

    server: str
    accelerator: str
    user_rows: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the processes of a server on an accelerator are run.

    `settings` are variables of docs/settings.md, including MODEL. `resources` is what one replica
    takes, by the machines' names for them (CPU, GPU, acc_H100).
    """

    settings: Mapping[str, str]
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipes:
    """The settings of each server's processes, and the resources of a replica per accelerator."""

    settings: Mapping[str, Mapping[str, str]]
    resources: Mapping[str, Mapping[str, float]]

    def of(self, group: Group) -> Recipe:
        """A group's recipe, with its rows as USER_ROWS. Raises ConfigFaulty for unknown names."""
        for name, known, kind in (
            (group.server, self.settings, "servers"),
            (group.accelerator, self.resources, "accelerators"),
        ):
            if name not in known:
                raise ConfigFaulty(f"{name!r} is not among the {kind} {sorted(known)}; add it.")
        rows = {"USER_ROWS": str(group.user_rows)}
        return Recipe({**self.settings[group.server], **rows}, self.resources[group.accelerator])


@dataclass(frozen=True, slots=True)
class Replica:
    """One API process. `url` has no slash at its end and is None until it is known."""

    name: str
    group: Group
    state: ReplicaState
    url: str | None = None
    why: str = ""
    """Why it failed, or why it is not placed yet."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call to an actuator has started. There is no room for `unplaced` replicas, for the
    reason `why`; they are reported and not tried again until the plan changes."""

    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    unplaced: int = 0
    why: str = ""
