"""The data types of a cluster: groups, recipes, replicas. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cluster.engines import HEARTH, Engine, filled
from cluster.errors import ConfigFaulty

LEAST_RESOURCES = {"CPU": 1.0}  # resources of a replica if its accelerator names none


class ReplicaState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Identical replicas of one server of the optimizer's system, on one of its accelerators.

    `user_rows` is the batch size in the plan. Replicas with another number of rows belong to
    another group, because rows are fixed when a process starts.
    """

    server: str
    accelerator: str
    user_rows: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the processes of a server on an accelerator are run.

    `settings` are environment variables; for Hearth they are listed in docs/settings.md and include
    MODEL. `resources` are the amounts that one replica takes, by the machines' names for them (CPU,
    GPU, acc_H100).
    """

    settings: Mapping[str, str]
    resources: Mapping[str, float] = field(default_factory=dict)
    engine: Engine = HEARTH


@dataclass(frozen=True, slots=True)
class Recipes:
    """How the processes of each server are run.

    Servers that are not in `engines` run Hearth. `resources` has accelerators as keys. `models` are
    the names that requests use for a server's models; replicas of other servers are asked for
    theirs. `costs` are the cents per hour of a replica, by server and accelerator.
    """

    settings: Mapping[str, Mapping[str, str]]
    resources: Mapping[str, Mapping[str, float]]
    engines: Mapping[str, Engine] = field(default_factory=dict)
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    costs: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def engine(self, server: str) -> Engine:
        return self.engines.get(server, HEARTH)

    def recipe(self, group: Group) -> Recipe:
        """Returns a group's recipe, whose settings and command line contain its rows. Raises
        ConfigFaulty for unknown names."""
        for name, names, kind in (
            (group.server, self.settings, "servers"),
            (group.accelerator, self.resources, "accelerators"),
        ):
            if name not in names:
                raise ConfigFaulty(f"{name!r} is not among the {kind} {sorted(names)}; add it.")
        settings = {**self.settings[group.server], "USER_ROWS": str(group.user_rows)}
        engine = self.engine(group.server)
        model = settings.get("MODEL", "")
        command = filled(engine.command, model=model, rows=group.user_rows)
        resources = self.resources[group.accelerator] or LEAST_RESOURCES
        return Recipe(settings, resources, replace(engine, command=command))


@dataclass(frozen=True, slots=True)
class Replica:
    """A serving process. `url` has no trailing slash, and is None until it is known."""

    name: str
    group: Group
    state: ReplicaState
    url: str | None = None
    why: str = ""
    """Why it failed or is not placed yet."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an actuator could not start: `unplaced` replicas have no room, for the reason `why`; the
    controller tries them again later."""

    unplaced: int = 0
    why: str = ""
