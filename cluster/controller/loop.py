"""The controller: one thread that owns the actuator, the plan and the journal.

    every period, or when invoked:  replicas ─▶ Planner.cycle ─▶ plan ─▶ journal
    every `rollout_s`:              replicas, plan ─▶ next_steps ─▶ start, stop

HTTP threads read `snapshot`, which is replaced as a whole, and call `invoke`.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TypeVar

from cluster.actuators import Actuator
from cluster.clock import steady_s
from cluster.controller.cycle import ControllerParts, Cycle, Planner
from cluster.controller.journal import (
    DecisionJson,
    Journal,
    decision_of,
    entry_of,
    fault_entry,
    past_in,
)
from cluster.controller.rollout import Plan, next_steps
from cluster.controller.sleep import StartForecast, StartTimes
from cluster.errors import ClusterError
from cluster.replicas import Group, Outcome, Replica

log = logging.getLogger(__name__)

JOIN_S = 90.0
DECISIONS_KEPT = 20
# Until replicas without room are tried again: there may be a new machine, or one was too busy.
RETRY_S = 60.0

T = TypeVar("T")
Invocation = SimpleQueue[Cycle | ClusterError]
"""Takes the answer to an `invoke`."""


@dataclass(frozen=True, slots=True)
class ControllerSnapshot:
    """The controller's state. `fault` says why the last attempt failed; empty if it did not.
    `num_faults` counts new faults. `starts` are by server. `decisions` are the decisions of recent
    cycles as JSON, newest first."""

    replicas: tuple[Replica, ...] = ()
    plan: Plan = field(default_factory=dict)
    cycle: Cycle | None = None
    unplaced: Mapping[Group, Outcome] = field(default_factory=dict)
    starts: Mapping[str, StartForecast] = field(default_factory=dict)
    fault: str = ""
    num_faults: int = 0
    decisions: tuple[DecisionJson, ...] = ()


@dataclass(slots=True)
class Rollout:
    """Executes plans. Controller thread only."""

    actuator: Actuator
    dry_run: bool
    clock: Callable[[], float] = steady_s
    start_times: StartTimes = field(default_factory=StartTimes)
    starts: Mapping[str, StartForecast] = field(default_factory=dict)
    unplaced: dict[Group, Outcome] = field(default_factory=dict)
    _unplaced_s: float = 0.0  # when a replica last found no room
    _plan: Plan = field(default_factory=dict)
    _names: frozenset[str] = frozenset()

    def step(self, plan: Plan) -> tuple[Replica, ...]:
        """Take a step towards the plan. Returns the replicas before. Raises ActuatorUnusable."""
        replicas = tuple(self.actuator.replicas())
        self.starts = self.start_times.see(replicas, self.clock())
        names = frozenset(each.name for each in replicas)
        # A new plan, a replica that is gone, or time passed justifies another try.
        is_due = self.clock() - self._unplaced_s >= RETRY_S
        if plan != self._plan or self._names - names or is_due:
            self.unplaced = {}
        self._plan, self._names = dict(plan), names
        if self.dry_run:
            return replicas
        unplaced = {group: outcome.unplaced for group, outcome in self.unplaced.items()}
        start, stop = next_steps(replicas, plan, unplaced)
        for group, count in start.items():
            outcome = self.actuator.start(group, count)
            if outcome.unplaced:
                log.warning("unplaced=%d group=%s why=%s", outcome.unplaced, group, outcome.why)
                self.unplaced[group] = outcome
                self._unplaced_s = self.clock()
        for group, count in stop.items():
            self.actuator.stop(group, count)
        return replicas


class Controller:
    """The controller's thread. The owner calls `start` and `stop`; any thread may call the rest.
    `sleepers` has the models of servers that may scale to 0 and that requests wake."""

    def __init__(
        self,
        parts: ControllerParts,
        create_actuator: Callable[[], Actuator],
        clock: Callable[[], float] = steady_s,
    ) -> None:
        self._parts, self._create_actuator, self._clock = parts, create_actuator, clock
        self.snapshot = ControllerSnapshot()  # replaced whole, by the controller thread only
        self._invocations: SimpleQueue[Invocation] = SimpleQueue()
        self._woken: SimpleQueue[str] = SimpleQueue()
        self.sleepers = parts.config.models_of_sleepers(parts.system)
        self._wake = threading.Event()
        self._must_end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Replicas keep running."""
        self._must_end.set()
        self._wake.set()
        self._thread.join(JOIN_S)

    def invoke(self, timeout_s: float) -> Cycle:
        """Run a cycle now. Raises ClusterError and TimeoutError."""
        if not self.is_alive:
            raise ClusterError(self.snapshot.fault or "the controller's thread has ended")
        answer: Invocation = SimpleQueue()
        self._invocations.put(answer)
        self._wake.set()
        try:
            result = answer.get(timeout=timeout_s)
        except Empty:
            raise TimeoutError(f"no cycle was completed within {timeout_s:g} s") from None
        if isinstance(result, ClusterError):
            raise result
        return result

    def wake(self, server: str) -> None:
        """Make a server run, because a request waits for it. Does not wait for the server."""
        self._woken.put(server)
        self._wake.set()

    def ready_in_s(self, server: str) -> float | None:
        """Returns the seconds until a server has a ready replica if it is woken now; None if not
        known."""
        return self.snapshot.starts.get(server, StartForecast()).ready_in_s(self._clock())

    def _run(self) -> None:
        """Run until `stop`. Failures are reported and retried."""
        config = self._parts.config
        with closing(self._parts.reader):
            while not self._must_end.is_set():
                try:
                    journal = Journal(config.journal, config.journal_bytes)
                    actuator = self._create_actuator()
                except Exception as error:
                    self._take_fault(error, _taken(self._invocations))
                    self._wake.wait(config.rollout_s)
                    self._wake.clear()
                    continue
                with closing(actuator):
                    self._serve(actuator, journal)

    def _serve(self, actuator: Actuator, journal: Journal) -> None:
        config = self._parts.config
        begun: tuple[Planner, Rollout] | None = None
        due_s = time.monotonic() if config.period_s else math.inf
        # Before the first plan, as the optimizer may start after us; twice as long each time.
        retry_s = config.rollout_s if config.period_s else math.inf
        while not self._must_end.is_set():
            invocations, woken = _taken(self._invocations), set(_taken(self._woken))
            is_due = bool(invocations) or time.monotonic() >= due_s
            if is_due:
                due_s = max(due_s + config.period_s, time.monotonic())
            try:
                planner, rollout = begun = begun or self._begin(actuator, journal)
                is_woken = planner.wake(woken, self._clock())
                if is_due or is_woken:
                    cycle = planner.cycle(actuator.replicas(), self._clock(), rollout.starts)
                    retry_s = math.inf if cycle.answer else 2 * retry_s
                    due_s = min(due_s, time.monotonic() + retry_s)
                    self._roll(rollout, planner, cycle)
                    starts_s = rollout.start_times.took_s
                    journal.write(entry_of(cycle, rollout.unplaced, starts_s, config.dry_run))
                    for each in invocations:
                        each.put(cycle)
                else:
                    self._roll(rollout, planner)
            except Exception as error:
                if self._take_fault(error, invocations):
                    with suppress(OSError):
                        journal.write(fault_entry(self._clock(), self.snapshot.fault))
            self._wake.wait(min(config.rollout_s, max(due_s - time.monotonic(), 0.0)))
            self._wake.clear()

    def _begin(self, actuator: Actuator, journal: Journal) -> tuple[Planner, Rollout]:
        """Take over running replicas, and what an earlier controller wrote into the journal."""
        config, replicas = self._parts.config, actuator.replicas()
        kept_s = config.scale_down_s + config.period_s  # the last line may be a period old
        past = past_in(journal.read_back(), self._clock(), kept_s)
        start_times = StartTimes(past.starts_s)
        rollout = Rollout(actuator, config.dry_run, self._clock, start_times)
        return Planner(self._parts, replicas, past), rollout

    def _roll(self, rollout: Rollout, planner: Planner, cycle: Cycle | None = None) -> None:
        replicas = rollout.step(planner.plan)
        before = self.snapshot
        decisions = before.decisions
        if cycle is not None:
            decisions = (decision_of(cycle), *decisions)[:DECISIONS_KEPT]
            log.info(
                "cycle=%d cycle_ms=%.0f changed=%s unplaced=%d fault=%s",
                cycle.number,
                1000 * cycle.seconds,
                [name for name, each in cycle.servers.items() if each.has_changed],
                sum(each.unplaced for each in rollout.unplaced.values()),
                cycle.fault,
            )
        self.snapshot = replace(
            before,
            replicas=replicas,
            plan=dict(planner.plan),
            unplaced=dict(rollout.unplaced),
            starts=rollout.starts,
            cycle=cycle or before.cycle,
            fault="",
            decisions=decisions,
        )

    def _take_fault(self, error: Exception, invocations: Sequence[Invocation]) -> bool:
        """Report an error, and log an unexpected one with its traceback. Returns whether it is
        new."""
        is_foreseen = isinstance(error, (ClusterError, OSError))
        message = str(error) if is_foreseen else f"a fault of the controller's own: {error!r}"
        fault = error if isinstance(error, ClusterError) else ClusterError(message)
        log.warning("nothing was done: %s", fault, exc_info=None if is_foreseen else error)
        before = self.snapshot
        is_new = str(fault) != before.fault
        num_faults = before.num_faults + is_new
        self.snapshot = replace(before, fault=str(fault), num_faults=num_faults)
        for each in invocations:
            each.put(fault)
        return is_new


def _taken(queue: SimpleQueue[T]) -> list[T]:
    """Returns all entries of a queue that only this thread reads."""
    return [queue.get() for _ in range(queue.qsize())]
