"""Runs replicas as Ray actors, each of which owns a process on its node.

Ray places actors by their resources. When a process or a node dies, it restarts the actor, if
necessary on another node. Requests never pass through Ray. Actors are detached and named, so that a
restarted controller finds them. A placement group reserves a replica's resources before its actor
exists: it shows within moments whether there is room, while an actor would wait forever.
"""

import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, unquote

from cluster.actuators import Placed
from cluster.actuators.api_process import claimed_cores, last_words, pinned_to, start_api
from cluster.actuators.probes import ReplicaHealth, probe
from cluster.errors import ActuatorUnusable
from cluster.replicas import Group, Recipe
from common.connections.sockets import free_port, host_and_port

log = logging.getLogger(__name__)

NAMESPACE = "hearth"
REPORT_TIMEOUT_S = 1.0
CONNECT_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 10.0
WATCH_S = 0.2


class ApiActor:
    """Runs on the node. Its methods run on one thread, which starts the process. When this thread
    ends for any reason, Linux signals the process to drain and exit."""

    def __init__(self, name: str, group: Group, recipe: Recipe, *, pins: bool) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        port = free_port(host)
        self._name, self._group = name, group
        self._url = f"http://{host_and_port(host, port)}"
        folder = Path(tempfile.gettempdir()) / "hearth-replicas"
        self._log_path = folder / f"{name}.log"
        count = recipe.resources.get("CPU", 0.0)
        cores = claimed_cores(int(count), folder) if pins and count == int(count) else ()
        self._engine = recipe.engine
        self._process = start_api(
            (host, port),
            recipe.settings,
            self._log_path,
            "--parent",
            str(os.getpid()),
            *pinned_to(cores),
            command=recipe.engine.command,
        )
        self._is_leaving = False
        self._ended: str | None = None
        threading.Thread(target=self._watch, name="replica-watch", daemon=True).start()

    def report(self) -> Placed:
        return Placed(self._name, self._group, self._url, self._is_leaving, self._ended)

    def mark_leaving(self) -> None:
        self._is_leaving = True

    def terminate(self) -> None:
        self.mark_leaving()
        self._process.terminate()

    def kill(self) -> None:
        self.mark_leaving()
        self._process.kill()

    def _watch(self) -> None:
        """Make Ray start another actor when a process that was ready ends or its node is lost."""
        was_ready, raylet = False, os.getppid()
        while self._process.is_running():
            if os.getppid() != raylet:
                os._exit(1)  # this drains the process; Ray has another actor elsewhere
            if not was_ready:
                was_ready = probe(self._url, self._engine).health is ReplicaHealth.READY
            time.sleep(WATCH_S)
        self._process.kill()  # ends workers that are left
        if was_ready and not self._is_leaving:
            os._exit(1)
        self._ended = last_words(self._log_path)


class RayMachines:
    """`Machines` of a Ray cluster. One thread at a time, and one instance per process, because
    Ray's connection belongs to the process."""

    def __init__(
        self,
        address: str = "auto",
        namespace: str = NAMESPACE,
        *,
        pins: bool = False,
        place_timeout_s: float = 5.0,
    ) -> None:
        """`pins` gives a replica with a whole number of CPUs its own cores, while its node has any.
        `place_timeout_s` is how long Ray may look for room. Raises ActuatorUnusable."""
        self._ray = _ray()
        self._pins = pins
        self._place_timeout_s = place_timeout_s
        self._actors: dict[str, Any] = {}  # handles by actor name
        self._reports: dict[str, Placed] = {}  # last reports by actor name
        self._last_calls: dict[str, str] = {}  # last method called, by actor name
        self._removed: set[str] = set()  # Ray may still list these for a moment
        try:
            _check_address(address)
            self._ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise ActuatorUnusable(
                f"Ray at {address!r} cannot be reached ({error}); give auto or the HOST:PORT of "
                "its head, as printed by `ray start --head`."
            ) from error

    def placed(self) -> Sequence[Placed]:
        names = self._actor_names()
        for name, report in self._ask(names).items():
            self._reports[name] = report
            if name in self._last_calls and not report.is_leaving:  # it has replaced a lost actor
                self._call(name, self._last_calls[name])
        self._reports = {name: report for name, report in self._reports.items() if name in names}
        return [self._placed(name) for name in names]

    def place(self, name: str, group: Group, recipe: Recipe) -> str | None:
        actor_name = _actor_name(name, group)
        if actor_name in self._actor_names():
            return None
        wanted = dict(recipe.resources)
        room = self._ray.util.placement_group(
            [wanted], strategy="STRICT_PACK", name=name, lifetime="detached"
        )
        if not room.wait(self._place_timeout_s):
            why = self._why_no_room(room, wanted)
            self._ray.util.remove_placement_group(room)
            return why
        options = self._options(actor_name, room, wanted)
        actor = self._ray.remote(ApiActor).options(**options)
        self._actors[actor_name] = actor.remote(name, group, recipe, pins=self._pins)
        return None

    def mark_leaving(self, name: str) -> None:
        if actor_name := self._actor_name_of(name):
            self._call(actor_name, "mark_leaving")

    def terminate(self, name: str) -> None:
        if actor_name := self._actor_name_of(name):
            self._call(actor_name, "terminate")

    def remove(self, name: str) -> None:
        actor_name = self._actor_name_of(name)
        if actor_name is None:
            return
        if actor := self._actor(actor_name):
            if actor_name in self._ask([actor_name]):
                self._ray.wait([actor.kill.remote()], timeout=KILL_TIMEOUT_S)
            self._ray.kill(actor, no_restart=True)
        self._removed.add(actor_name)
        for by_name in (self._actors, self._reports, self._last_calls):
            by_name.pop(actor_name, None)
        try:
            self._ray.util.remove_placement_group(self._ray.util.get_placement_group(name))
        except ValueError:
            log.debug("%s had no room reserved", name)

    def close(self) -> None:
        self._ray.shutdown()

    def _options(self, actor_name: str, room: Any, wanted: Mapping[str, float]) -> dict[str, Any]:
        """Returns the actor's options. Without `num_cpus`, a running actor would take no CPUs."""
        in_room = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        return {
            "name": actor_name,
            "lifetime": "detached",
            "max_restarts": -1,
            "num_cpus": wanted.get("CPU", 0.0),
            "num_gpus": wanted.get("GPU", 0.0),
            "resources": {key: wanted[key] for key in wanted if key not in ("CPU", "GPU")},
            "scheduling_strategy": in_room(placement_group=room, placement_group_bundle_index=0),
        }

    def _actor_names(self) -> list[str]:
        """Returns the names of all actors. Every call begins here. Raises ActuatorUnusable."""
        try:
            listed = set(self._ray.util.list_named_actors())
        except (self._ray.exceptions.RayError, OSError, RuntimeError) as error:
            raise ActuatorUnusable(f"Ray's head does not answer: {error}.") from error
        self._removed &= listed
        return sorted(name for name in listed - self._removed if name.count("|") == 3)

    def _ask(self, actor_names: Sequence[str]) -> dict[str, Placed]:
        """Returns the reports that arrive in time. Actors that restart or lost their node send
        none."""
        names: dict[Any, str] = {}  # keys: references to reports
        for actor_name in actor_names:
            if actor := self._actor(actor_name):
                names[actor.report.remote()] = actor_name
        if not names:
            return {}
        refs = list(names)
        answered, _ = self._ray.wait(refs, num_returns=len(refs), timeout=REPORT_TIMEOUT_S)
        reports = {}
        for ref in answered:
            try:
                reports[names[ref]] = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                log.debug("%s does not answer: %s", names[ref], error)
        return reports

    def _call(self, actor_name: str, method: str) -> None:
        """Call an actor without waiting. An actor that restarts gets the call once it runs."""
        self._last_calls[actor_name] = method
        if actor := self._actor(actor_name):
            getattr(actor, method).remote()

    def _placed(self, actor_name: str) -> Placed:
        report = self._reports.get(actor_name) or Placed(*_parsed(actor_name))
        return replace(report, is_leaving=report.is_leaving or actor_name in self._last_calls)

    def _actor_name_of(self, name: str) -> str | None:
        return next((each for each in self._actor_names() if _parsed(each)[0] == name), None)

    def _actor(self, actor_name: str) -> Any:
        if actor_name not in self._actors:
            try:
                self._actors[actor_name] = self._ray.get_actor(actor_name)
            except ValueError:  # it has gone since it was listed
                return None
        return self._actors[actor_name]

    def _why_no_room(self, room: Any, wanted: Mapping[str, float]) -> str:
        table = self._ray.util.placement_group_table(room)
        state = table.get("stats", {}).get("scheduling_state", "PENDING")
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        amounts = (
            f"{name}: need {amount:g}, {free.get(name, 0.0):g} of {total.get(name, 0.0):g} free"
            for name, amount in wanted.items()
        )
        return f"Ray says {state}: no node has room; in total, {', '.join(amounts)}."


def _parsed(actor_name: str) -> tuple[str, Group]:
    """Returns a replica's name and its group."""
    name, server, accelerator, user_rows = map(unquote, actor_name.split("|"))
    return name, Group(server, accelerator, int(user_rows))


def _actor_name(name: str, group: Group) -> str:
    """Returns a name with all that must be known about an actor that does not answer."""
    parts = (name, group.server, group.accelerator, str(group.user_rows))
    return "|".join(quote(part, safe="") for part in parts)


def _check_address(address: str) -> None:
    """Fails early, because Ray itself would retry for minutes. Raises OSError or ValueError."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


def _ray() -> ModuleType:
    """Imports Ray. Raises ActuatorUnusable with the remedy if it is not installed."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ActuatorUnusable("Ray is missing; pip install 'hearth[cluster]'.") from error
    # Hides Ray's warning that losing a reservation kills its actors.
    logging.getLogger("ray.actor").setLevel(logging.ERROR)
    module: ModuleType = ray
    return module
