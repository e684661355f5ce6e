"""`TendedReplicas`: the Actuator for processes on this machine and on Ray.

A thread polls every replica once a second, writes the proxy's upstreams file, and takes replicas
that are being stopped through these steps:

    ready ─▶ leaves the file ─▶ leave_s ─▶ SIGTERM: refuses, ends its streams ─▶ ended ─▶ removed

Engines other than Hearth may cut off their streams on SIGTERM, so they get it only when they have
no requests left, or after `drain_s`.

A replica that ends by itself is started again. The wait before each restart doubles, until a
successor has been ready for STEADY_S.

The proxy may use an old file for a moment. Requests that it sends meanwhile are served. Requests
during the drain get 503, and the proxy sends them to another replica.
"""

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cluster.actuators import Machines, Placed
from cluster.actuators.probes import Probed, ReplicaHealth, ReplicaProbes, probe
from cluster.actuators.upstreams_file import Listed, UpstreamsFile
from cluster.engines import Engine
from cluster.errors import ActuatorUnusable, ClusterError
from cluster.replicas import Group, Outcome, Recipe, Recipes, Replica, ReplicaState

log = logging.getLogger(__name__)

# Consecutive health checks without any answer after which a replica leaves the upstreams; a single
# one may be due to load. A replica that says it is not ready, or does not listen, leaves at once.
MAX_SILENT_CHECKS = 2
# Covers gunicorn's own grace period after DRAIN_TIMEOUT, with a reserve.
GRACE_BEYOND_DRAIN_S = 30.0
# Waits between a crash and the next start.
FIRST_WAIT_S, MAX_WAIT_S = 1.0, 300.0
STEADY_S = 300.0  # after a replica was ready for this long, waits begin at FIRST_WAIT_S again
JOIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Times:
    """`leave_s` must exceed the proxy's HEALTH_INTERVAL plus the 4 s that its health checks may
    take. `drain_s` overrides DRAIN_TIMEOUT in replicas' recipes, and is the time that other engines
    have to finish their requests."""

    probe_s: float = 1.0
    leave_s: float = 10.0
    drain_s: float = 600.0


@dataclass(slots=True)
class _Note:
    """What is known of a replica besides its machine's record."""

    is_ready: bool = False
    ready_s: float | None = None  # when it first became ready
    wait_s: float = FIRST_WAIT_S  # wait before a restart, if it crashes
    due_s: float | None = None  # when to restart it, once it has crashed
    num_silent: int = 0
    busy_rows: int | None = None
    models: tuple[str, ...] = ()
    left_s: float | None = None
    terminated_s: float | None = None

    @property
    def was_ready(self) -> bool:
        return self.ready_s is not None

    def take(self, probed: Probed, now_s: float) -> None:
        is_silent = probed.health is ReplicaHealth.SILENT
        self.num_silent = self.num_silent + 1 if is_silent else 0
        if is_silent and self.num_silent < MAX_SILENT_CHECKS:
            return
        self.is_ready = probed.health is ReplicaHealth.READY
        if self.is_ready and self.ready_s is None:
            self.ready_s = now_s
        self.busy_rows = probed.busy_rows
        self.models = self.models or probed.models

    def crash(self, now_s: float) -> None:
        if self.due_s is None:
            if self.ready_s is not None and now_s - self.ready_s >= STEADY_S:
                self.wait_s = FIRST_WAIT_S
            self.due_s = now_s + self.wait_s

    def is_due(self, now_s: float) -> bool:
        return self.due_s is not None and now_s >= self.due_s

    def successor(self) -> "_Note":
        return _Note(wait_s=min(2 * self.wait_s, MAX_WAIT_S))


class TendedReplicas:
    """The Actuator. A lock lets its thread and its callers take turns of bounded length."""

    def __init__(
        self,
        machines: Machines,
        recipes: Recipes,
        upstreams: UpstreamsFile,
        times: Times = Times(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Adopts replicas that already run. Raises ActuatorUnusable."""
        self._machines = machines
        self._recipes = recipes
        self._upstreams = upstreams
        self._times = times
        self._clock = clock
        self._probes = ReplicaProbes(partial(probe, asks_models=len(recipes.settings) > 1))
        self._turn = threading.Lock()
        self._notes: dict[str, _Note] = {}
        self._must_stop = threading.Event()
        try:
            self._adopt()
        except BaseException:
            self._probes.close()
            machines.close()  # so that the next try can open them
            raise
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
            failed = [each for each in present if self._state(each) is ReplicaState.FAILED]
            due = [each for each in failed if self._note(each).is_due(self._clock())]
            num_waiting = len(failed) - len(due)
            notes = [self._remove(each.name).successor() for each in due]
            num_started = 0
            why: str | None = None
            num_missing = count - num_waiting - sum(self._counts(each) for each in present)
            while num_started < num_missing and why is None:
                name = _name_of(group)
                why = self._machines.place(name, group, recipe)
                if why is None:
                    num_started += 1
                    self._notes[name] = notes.pop() if notes else _Note()
            if num_started:
                log.info("started %d replicas of %s", num_started, group)
            return Outcome(max(0, num_missing - num_started), why or "")

    def stop(self, group: Group, count: int) -> None:
        with self._turn:
            present = [each for each in self._machines.placed() if each.group == group]
            staying = [each for each in present if not each.is_leaving]
            surplus = len(staying) - max(0, count)
            going = sorted(staying, key=self._worth)[: max(0, surplus)]
            for each in going:
                self._machines.mark_leaving(each.name)
            if going:
                self._write_upstreams(self._machines.placed())

    def close(self) -> None:
        self._must_stop.set()
        self._thread.join(JOIN_TIMEOUT_S)
        self._probes.close()
        self._machines.close()

    def _adopt(self) -> None:
        """Adopt running replicas. Those that an earlier run listed count as ready until probed."""
        models_by_url = {listed.url: listed.models for listed in self._upstreams.listed}
        for each in self._machines.placed():
            if each.url in models_by_url:
                models = models_by_url[each.url]
                self._notes[each.name] = _Note(True, self._clock(), models=models)
            elif each.is_leaving:  # it may still have streams
                self._notes[each.name] = _Note(ready_s=self._clock())
        self._tend()

    def _run(self) -> None:
        while not self._must_stop.wait(self._times.probe_s):
            try:
                self._tend()
            except ActuatorUnusable as error:
                log.warning("replicas are not tended: %s", error)
            except Exception:
                log.exception("a round of tending failed")

    def _tend(self) -> None:
        with self._turn:
            placed = self._machines.placed()
            self._ask(placed)
            self._write_upstreams(placed)
            for each in placed:
                try:
                    if each.is_leaving:
                        self._see_off(each)
                    elif each.ended is not None:
                        self._see_crash(each)
                except ActuatorUnusable:
                    raise
                except Exception:
                    # An error with one replica must not stop the work for all others.
                    log.exception("%s is not tended", each.name)

    def _ask(self, placed: Sequence[Placed]) -> None:
        present = {each.name for each in placed}
        self._notes = {name: note for name, note in self._notes.items() if name in present}
        running = {e.url: self._engine(e) for e in placed if e.url and e.ended is None}
        answers = self._probes.ask(running)
        for each in placed:
            if each.ended is not None or each.url is None:
                self._note(each).take(Probed(ReplicaHealth.NOT_READY), self._clock())
            elif each.url in answers:
                self._note(each).take(answers[each.url], self._clock())

    def _write_upstreams(self, placed: Sequence[Placed]) -> None:
        """Write the ready replicas into the upstreams file. If there are several servers, a replica
        gets only requests for its own models."""
        listed: dict[str, Listed] = {}
        for each in placed:
            if self._state(each) is not ReplicaState.READY or each.url is None:
                continue
            models = self._recipes.models.get(each.group.server) or self._note(each).models
            if len(self._recipes.settings) > 1 and not models:
                log.warning("%s does not list its models; it gets no requests", each.name)
                continue
            engine = self._engine(each)
            cost = self._recipes.costs.get((each.group.server, each.group.accelerator))
            listed[each.url] = Listed(
                url=each.url,
                models=models,
                health_path=engine.ready_path,
                rows=None if engine.drains_itself else each.group.user_rows,
                server=each.group.server,
                cents_per_hour=cost or None,
            )
        if self._upstreams.write(listed.values()):
            log.info("%d replicas are ready", len(listed))

    def _see_off(self, replica: Placed) -> None:
        """Take a replica that is being stopped one step further."""
        note, now_s = self._note(replica), self._clock()
        if note.left_s is None:
            note.left_s = now_s
        if replica.ended is not None:
            self._remove(replica.name)
        elif note.terminated_s is None:
            # A replica that was never ready has received no requests.
            if not note.was_ready or self._may_end(replica, now_s - note.left_s):
                self._machines.terminate(replica.name)
                note.terminated_s = now_s
        elif now_s - note.terminated_s > self._ending_s(replica):
            log.warning("%s did not end by itself and is killed", replica.name)
            self._remove(replica.name)

    def _ending_s(self, replica: Placed) -> float:
        """Returns how long the replica may take to end after SIGTERM."""
        drain_s = self._times.drain_s if self._engine(replica).drains_itself else 0.0
        return drain_s + GRACE_BEYOND_DRAIN_S

    def _may_end(self, replica: Placed, left_for_s: float) -> bool:
        """Returns whether SIGTERM would cut off no stream, or the time to finish is over."""
        draining_s = left_for_s - self._times.leave_s
        if draining_s < 0 or self._engine(replica).drains_itself:
            return draining_s >= 0
        return self._note(replica).busy_rows == 0 or draining_s >= self._times.drain_s

    def _see_crash(self, crashed: Placed) -> None:
        """Restart a crashed replica that had been ready, once its wait is over. A replica that was
        never ready is kept for inspection until another one is wanted."""
        note = self._note(crashed)
        if note.due_s is None:
            note.crash(self._clock())
            log.warning("%s has ended: %s", crashed.name, crashed.ended)
        if not note.was_ready or not note.is_due(self._clock()):
            return
        try:
            recipe = self._recipe(crashed.group)
        except ClusterError as error:
            log.warning("%s", error)
            return
        self._remove(crashed.name)
        name = _name_of(crashed.group)
        why = self._machines.place(name, crashed.group, recipe)
        if why is not None:
            log.warning("there is no room for it: %s", why)
            return
        self._notes[name] = note.successor()
        log.info("%s takes the place of %s", name, crashed.name)

    def _remove(self, name: str) -> _Note:
        self._machines.remove(name)
        return self._notes.pop(name, _Note())

    def _recipe(self, group: Group) -> Recipe:
        recipe = self._recipes.recipe(group)
        drain = {"DRAIN_TIMEOUT": str(self._times.drain_s)}
        return replace(recipe, settings={**recipe.settings, **drain})

    def _engine(self, replica: Placed) -> Engine:
        return self._recipes.engine(replica.group.server)

    def _note(self, replica: Placed) -> _Note:
        return self._notes.setdefault(replica.name, _Note())

    def _state(self, replica: Placed) -> ReplicaState:
        if replica.is_leaving:
            return ReplicaState.DRAINING
        if replica.ended is not None:
            return ReplicaState.FAILED
        return ReplicaState.READY if self._note(replica).is_ready else ReplicaState.STARTING

    def _replica(self, placed: Placed) -> Replica:
        state = self._state(placed)
        why = placed.ended or ""
        if state is ReplicaState.STARTING and self._note(placed).was_ready:
            why = "It was ready and does not answer any more."
        return Replica(placed.name, placed.group, state, placed.url, why)

    def _counts(self, replica: Placed) -> bool:
        return self._state(replica) in (ReplicaState.STARTING, ReplicaState.READY)

    def _worth(self, replica: Placed) -> tuple[int, int]:
        """Returns a sort key; the lowest is stopped first: replicas that do not work, then replicas
        with few busy rows."""
        order = (ReplicaState.FAILED, ReplicaState.STARTING, ReplicaState.READY)
        return order.index(self._state(replica)), self._note(replica).busy_rows or 0


def _name_of(group: Group) -> str:
    """Returns a new name of letters, digits and dashes, valid for hosts and files."""
    words = re.findall(r"[a-z0-9]+", f"{group.server} {group.accelerator}".lower())
    return "-".join([*words, str(group.user_rows), secrets.token_hex(4)])[-63:]
