"""`TendedReplicas`: an Actuator for API processes on local machines and on Ray.

A thread polls every replica once a second, writes the proxy's upstreams file, and takes replicas
that are being stopped through these steps:

    ready ─▶ leaves the file ─▶ leave_s ─▶ SIGTERM: refuses, ends its streams ─▶ ended ─▶ removed

The proxy may have an old file for a moment. Requests that it sends meanwhile are
served; those that it sends during the drain get 503, and it sends them to another replica.
"""

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.actuators.machines import Machines, Placed
from cluster.actuators.probes import Answer, Health, Probes, models_of
from cluster.actuators.upstreams_file import UpstreamsFile
from cluster.errors import ActuatorUnusable, ClusterError
from cluster.replicas import Group, Outcome, Recipe, Recipes, Replica, State

log = logging.getLogger(__name__)

# Health checks in a row without any answer before a replica leaves the upstreams: one may have
# been a moment's load. One that says no, or that nobody listens for, leaves at the first.
MAX_SILENT_CHECKS = 2
# Beyond DRAIN_TIMEOUT: gunicorn's own grace, and some.
GRACE_BEYOND_DRAIN_S = 30.0
JOIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Times:
    """`leave_s` must exceed the sum of the proxy's HEALTH_INTERVAL and the 4 s that its health
    checks may take; `drain_s` is DRAIN_TIMEOUT of the replicas, whatever their recipe says."""

    probe_s: float = 1.0
    leave_s: float = 10.0
    drain_s: float = 600.0


@dataclass(slots=True)
class _Note:
    """What is known about a replica beyond what its machine knows."""

    is_ready: bool = False
    was_ready: bool = False
    num_silent: int = 0
    busy_rows: int = 0
    models: tuple[str, ...] = ()
    left_s: float | None = None
    terminated_s: float | None = None

    def take(self, answer: Answer) -> None:
        is_silent = answer.health is Health.SILENT
        self.num_silent = self.num_silent + 1 if is_silent else 0
        if is_silent and self.num_silent < MAX_SILENT_CHECKS:
            return
        self.is_ready = answer.health is Health.READY
        self.was_ready = self.was_ready or self.is_ready
        self.busy_rows = answer.busy_rows


class TendedReplicas:
    """The Actuator. Its thread and its callers take turns; every turn is bounded in time."""

    def __init__(
        self,
        machines: Machines,
        recipes: Recipes,
        upstreams: UpstreamsFile,
        times: Times = Times(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Adopts replicas that run already. Raises ActuatorUnusable."""
        self._machines = machines
        self._recipes = recipes
        self._upstreams = upstreams
        self._times = times
        self._clock = clock
        self._probes = Probes()
        self._turn = threading.Lock()
        self._notes: dict[str, _Note] = {}
        self._must_stop = threading.Event()
        # Until they are asked, those that an earlier run listed are taken for ready.
        for each in machines.placed():
            is_listed = each.url in upstreams.urls
            self._notes[each.name] = _Note(is_ready=is_listed, was_ready=is_listed)
        self._tend()
        self._thread = threading.Thread(target=self._run, name="replica-tending", daemon=True)
        self._thread.start()

    def replicas(self) -> Sequence[Replica]:
        with self._turn:
            placed = sorted(self._machines.placed(), key=lambda each: each.name)
            return [self._replica(each) for each in placed]

    def start(self, group: Group, count: int) -> Outcome:
        with self._turn:
            recipe = self._recipe(group)
            present = [each for each in self._machines.placed() if each.group == group]
            for each in present:
                if self._state(each) is State.FAILED:
                    self._remove(each.name)
            started: list[str] = []
            why = None
            num_missing = count - sum(self._counts(each) for each in present)
            while len(started) < num_missing and why is None:
                name = _name_of(group)
                why = self._machines.place(name, group, recipe)
                if why is None:
                    started.append(name)
            log.info("started %d replicas of %s", len(started), group)
            unplaced = max(0, num_missing - len(started))
            return Outcome(started=tuple(started), unplaced=unplaced, why=why or "")

    def stop(self, group: Group, count: int) -> Outcome:
        with self._turn:
            here = [each for each in self._machines.placed() if each.group == group]
            staying = [each for each in here if not each.is_leaving]
            surplus = len(staying) - max(0, count)
            going = sorted(staying, key=self._worth)[: max(0, surplus)]
            for each in going:
                self._machines.mark_leaving(each.name)
            if going:
                self._write_upstreams(self._machines.placed())
            return Outcome(stopped=tuple(each.name for each in going))

    def close(self) -> None:
        self._must_stop.set()
        self._thread.join(JOIN_TIMEOUT_S)
        self._probes.close()
        self._machines.close()

    def _run(self) -> None:
        while not self._must_stop.wait(self._times.probe_s):
            try:
                self._tend()
            except ActuatorUnusable as error:
                log.warning("replicas are not tended: %s", error)
            except Exception:
                # One odd machine must not end the tending of all others.
                log.exception("a round of tending failed")

    def _tend(self) -> None:
        with self._turn:
            placed = self._machines.placed()
            self._ask(placed)
            self._write_upstreams(placed)
            for each in placed:
                if each.is_leaving:
                    self._see_off(each)
                elif each.ended is not None and self._note(each).was_ready:
                    self._replace(each)

    def _ask(self, placed: Sequence[Placed]) -> None:
        present = {each.name for each in placed}
        self._notes = {name: note for name, note in self._notes.items() if name in present}
        answers = self._probes.ask(
            each.url for each in placed if each.url is not None and each.ended is None
        )
        for each in placed:
            nobody = Answer(Health.NOT_READY)
            self._note(each).take(answers.get(each.url or "", nobody))

    def _write_upstreams(self, placed: Sequence[Placed]) -> None:
        """With several servers, each only gets requests for its own models."""
        models_by_url: dict[str, tuple[str, ...]] = {}
        for each in placed:
            if self._state(each) is not State.READY or each.url is None:
                continue
            note = self._note(each)
            if len(self._recipes.settings) > 1:
                note.models = note.models or models_of(each.url)
                if not note.models:
                    log.warning("%s does not list its models; it gets no requests", each.name)
                    continue
            models_by_url[each.url] = note.models
        if self._upstreams.write(models_by_url):
            log.info("%d replicas are ready", len(models_by_url))

    def _see_off(self, replica: Placed) -> None:
        """Takes a replica that is being stopped one step further."""
        note, now_s = self._note(replica), self._clock()
        if note.left_s is None:
            note.left_s = now_s
        if replica.ended is not None:
            self._remove(replica.name)
        elif note.terminated_s is None:
            # Nobody was ever sent to one that was never ready.
            if not note.was_ready or now_s - note.left_s >= self._times.leave_s:
                self._machines.terminate(replica.name)
                note.terminated_s = now_s
        elif now_s - note.terminated_s > self._times.drain_s + GRACE_BEYOND_DRAIN_S:
            log.warning("%s did not end by itself and is killed", replica.name)
            self._remove(replica.name)

    def _replace(self, crashed: Placed) -> None:
        """Replaces a replica that had been ready; one that never was is kept for inspection."""
        log.warning("%s has ended and is replaced: %s", crashed.name, crashed.ended)
        try:
            recipe = self._recipe(crashed.group)
        except ClusterError as error:
            log.warning("%s", error)
            return
        self._remove(crashed.name)
        why = self._machines.place(_name_of(crashed.group), crashed.group, recipe)
        if why is not None:
            log.warning("there is no room for it: %s", why)

    def _remove(self, name: str) -> None:
        self._machines.remove(name)
        self._notes.pop(name, None)

    def _recipe(self, group: Group) -> Recipe:
        recipe = self._recipes.of(group)
        drain = {"DRAIN_TIMEOUT": str(self._times.drain_s)}
        return Recipe({**recipe.settings, **drain}, recipe.resources)

    def _note(self, replica: Placed) -> _Note:
        return self._notes.setdefault(replica.name, _Note())

    def _state(self, replica: Placed) -> State:
        if replica.is_leaving:
            return State.DRAINING
        if replica.ended is not None:
            return State.FAILED
        return State.READY if self._note(replica).is_ready else State.STARTING

    def _replica(self, placed: Placed) -> Replica:
        state = self._state(placed)
        why = placed.ended or ""
        if state is State.STARTING and self._note(placed).was_ready:
            why = "It was ready and does not answer any more."
        return Replica(placed.name, placed.group, state, placed.url, why)

    def _counts(self, replica: Placed) -> bool:
        return self._state(replica) in (State.STARTING, State.READY)

    def _worth(self, replica: Placed) -> tuple[int, int]:
        """The lowest is stopped first: replicas that do not work, then those with few busy rows."""
        order = (State.FAILED, State.STARTING, State.READY)
        return order.index(self._state(replica)), self._note(replica).busy_rows


def _name_of(group: Group) -> str:
    """A new name of letters, digits and dashes, which is valid for hosts and files."""
    words = re.findall(r"[a-z0-9]+", f"{group.server} {group.accelerator}".lower())
    return "-".join([*words, str(group.user_rows), secrets.token_hex(4)])[-63:]
