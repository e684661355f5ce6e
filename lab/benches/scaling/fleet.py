"""The replicas of a virtual day: an Actuator, and the counters that /metrics would have.

A replica behaves like the optimizer's queue model, in steady state at its share of the load.
Requests beyond the capacity of a server's replicas wait, and are served first come, first served.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from cluster.controller.pages import Readings
from cluster.engines import Counted, Counters
from cluster.replicas import Group, Outcome, Replica, ReplicaState
from lab.benches.scaling.day import STEP_S, Day, Json
from optimizer.model.latency import PhaseModel
from optimizer.model.queueing import Replica as Queue

START_S, DRAIN_S = 90.0, 60.0
HIGHEST = 0.98  # share of a replica's capacity beyond which requests wait for the server
GRID = np.linspace(1e-6, HIGHEST, 100)
QUEUE = 10  # places to wait per row, as in the optimizer


@dataclass(frozen=True, slots=True)
class Table:
    """A replica's figures at equally spaced rates from 0 to almost `most` requests per second."""

    most: float
    ttft_ms: tuple[float, ...]
    itl_ms: tuple[float, ...]
    present: tuple[float, ...]

    def at(self, rate: float) -> tuple[float, float, float]:
        """Returns TTFT, ITL and the number of requests present."""
        place = min(rate / self.most / HIGHEST, 1.0) * (len(GRID) - 1)
        low = min(int(place), len(GRID) - 2)
        part = place - low
        ttft_ms, itl_ms, present = (
            column[low] + part * (column[low + 1] - column[low])
            for column in (self.ttft_ms, self.itl_ms, self.present)
        )
        return ttft_ms, itl_ms, present


@dataclass(slots=True)
class _Replica:
    name: str
    group: Group
    ready_s: float
    ends_s: float | None = None
    counters: Counters = field(default_factory=lambda: Counters(0.0))


@dataclass(slots=True)
class Totals:
    """Totals of a day."""

    requests: float = 0.0
    within: float = 0.0  # requests within their levels
    cost_cents: float = 0.0
    started: int = 0
    most_replicas: int = 0
    replica_s: float = 0.0


class Fleet:
    """An Actuator and Reader in virtual time."""

    def __init__(self, day: Day, seed: int) -> None:
        self._day, self._rng = day, np.random.default_rng(seed)
        self._system = day.document["system"]
        servers = self._system["serverData"]["servers"]
        self._specs = {each["name"]: each for each in servers}
        self._levels = {each["name"]: self._levels_of(each) for each in servers}
        self._costs = {
            a["name"]: a["cost"] for a in self._system["acceleratorData"]["accelerators"]
        }
        self._tables: dict[Group, Table] = {}
        self._replicas: dict[str, _Replica] = {}
        self._backlog: dict[str, float] = defaultdict(float)
        self._since: dict[Group, Counters] = {}  # counts per replica since the last read
        self._present: dict[Group, float] = {}
        self._number = 0
        self._ready: dict[str, dict[Group, int]] = {}
        self._cost_per_hour = 0.0
        self._stale_s = 0.0  # when these two must be counted again
        self.now_s = 0.0
        self.totals = Totals()

    # Actuator

    def replicas(self) -> Sequence[Replica]:
        return [
            Replica(each.name, each.group, self._state(each), f"http://{each.name}")
            for each in self._replicas.values()
        ]

    def start(self, group: Group, count: int) -> Outcome:
        there = sum(r.group == group and r.ends_s is None for r in self._replicas.values())
        for _ in range(count - there):
            self._number += 1
            name = f"{group.server}-{self._number:06}"
            # Names sort in the order of starts.
            self._replicas[name] = _Replica(name, group, self.now_s + START_S)
        self.totals.started += max(count - there, 0)
        self._stale_s = 0.0
        return Outcome()

    def stop(self, group: Group, count: int) -> None:
        there = [r for r in self._replicas.values() if r.group == group and r.ends_s is None]
        going = sorted(there, key=lambda each: -each.ready_s)[: max(len(there) - count, 0)]
        for each in going:
            each.ends_s = self.now_s + DRAIN_S
            self._stale_s = 0.0

    def close(self) -> None: ...

    # Reader

    def read(self, replicas: Sequence[Replica]) -> Readings:
        found = {}
        for each in self._replicas.values():
            more = self._since.get(each.group)
            if each.ends_s is None and each.ready_s <= self.now_s and more is not None:
                each.counters = _added(each.counters, more, self._present.get(each.group, 0.0))
            if each.ready_s <= self.now_s:
                found[each.name] = replace(each.counters, at_s=self.now_s)
        self._since = {}
        return {each.name: found[each.name] for each in replicas if each.name in found}

    def waiting_at_door(self) -> float:
        return 0.0

    # The day

    def warm(self) -> None:
        """Make all starting replicas ready, without counting their starts."""
        for each in self._replicas.values():
            each.ready_s = self.now_s
        self._stale_s = 0.0
        self.totals = Totals()

    def ready(self, group: Group) -> int:
        """Returns the number of ready replicas in the previous step."""
        return self._ready.get(group.server, {}).get(group, 0)

    def utilization(self, server: str) -> float:
        """Returns the share of ready rows that were busy in the previous step."""
        ready = self._ready.get(server, {})
        rows = sum(count * group.user_rows for group, count in ready.items())
        busy = sum(count * self._present.get(group, 0.0) for group, count in ready.items())
        return min(busy / rows, 1.0) if rows else 1.0

    def step(self, number: int) -> None:
        """Simulate STEP_S seconds of arrivals and service."""
        self.now_s = (number + 1) * STEP_S
        if self.now_s >= self._stale_s:
            self._count_replicas()
        self.totals.cost_cents += self._cost_per_hour * STEP_S / 3600
        self.totals.replica_s += STEP_S * len(self._replicas)
        self.totals.most_replicas = max(self.totals.most_replicas, len(self._replicas))
        for index, name in enumerate(self._day.names):
            self._serve(name, float(self._day.rates[index, number]), self._ready.get(name, {}))

    def _count_replicas(self) -> None:
        """Remove ended replicas, count ready ones and costs, and note until when these hold."""
        self._replicas = {
            name: each
            for name, each in self._replicas.items()
            if each.ends_s is None or each.ends_s > self.now_s
        }
        self._ready = defaultdict(lambda: defaultdict(int))
        self._stale_s, self._cost_per_hour = math.inf, 0.0
        for each in self._replicas.values():
            self._cost_per_hour += self._costs[each.group.accelerator]
            if each.ends_s is not None:
                self._stale_s = min(self._stale_s, each.ends_s)
            elif each.ready_s <= self.now_s:
                self._ready[each.group.server][each.group] += 1
            else:
                self._stale_s = min(self._stale_s, each.ready_s)

    def _serve(self, name: str, rate: float, ready: Mapping[Group, int]) -> None:
        arrived = rate * STEP_S
        self.totals.requests += arrived
        able = sum(count * self._table(group).most for group, count in ready.items())
        if not able:
            self._backlog[name] += arrived
            return
        waiting = self._backlog[name] + arrived
        served = min(waiting, able * STEP_S)
        self._backlog[name] = waiting - served
        # Counts are random, although the simulated service is not.
        seen = served + self._rng.poisson(arrived) - arrived
        level_ttft_ms, level_itl_ms = self._levels[name]
        wait_ms = 1000 * self._backlog[name] / able
        for group, count in ready.items():
            table = self._table(group)
            share = count * table.most / able
            ttft_ms, itl_ms, present = table.at(served * share / STEP_S / count)
            if ttft_ms + wait_ms <= level_ttft_ms and itl_ms <= level_itl_ms:
                self.totals.within += arrived * share
            self._present[group] = present + self._backlog[name] * share / count
            self._count(group, max(seen * share / count, 0.0), ttft_ms + wait_ms, itl_ms)

    def _count(self, group: Group, ended: float, ttft_ms: float, itl_ms: float) -> None:
        load = self._specs[group.server]["currentAlloc"]["load"]
        gaps = ended * (load["avgOutTokens"] - 1)
        more = Counters(
            0.0,
            ended=ended,
            prompt_tokens=ended * load["avgInTokens"],
            completion_tokens=ended * load["avgOutTokens"],
            ttft_s=ended * ttft_ms / 1000,
            ttft_count=ended,
            itl_s=gaps * itl_ms / 1000,
            itl_count=gaps,
        )
        before = self._since.get(group)
        self._since[group] = more if before is None else _added(before, more, 0.0)

    def _state(self, each: _Replica) -> ReplicaState:
        if each.ends_s is not None:
            return ReplicaState.DRAINING
        return ReplicaState.READY if each.ready_s <= self.now_s else ReplicaState.STARTING

    def _levels_of(self, server: Json) -> tuple[float, float]:
        classes = self._system["serviceClassData"]["serviceClasses"]
        targets = next(c for c in classes if c["name"] == server["class"])["modelTargets"]
        target = next(t for t in targets if t["model"] == server["model"])
        return target["slo-ttft"], target["slo-itl"]

    def _table(self, group: Group) -> Table:
        if group not in self._tables:
            model = self._specs[group.server]["model"]
            perf = next(
                each
                for each in self._system["modelData"]["models"]
                if (each["name"], each["acc"]) == (model, group.accelerator)
            )
            load = self._specs[group.server]["currentAlloc"]["load"]
            self._tables[group] = _table(perf, load, group.user_rows)
        return self._tables[group]


def _table(perf: Json, load: Json, rows: int) -> Table:
    values = (
        *perf["decodeParms"].values(), *perf["prefillParms"].values(),
        load["avgInTokens"], load["avgOutTokens"],
    )  # fmt: skip
    model = PhaseModel(*(np.full(len(GRID), float(value)) for value in values))
    queue = Queue(model, np.full(len(GRID), rows), np.full(len(GRID), QUEUE * rows))
    most_per_ms = queue.max_rate_per_ms()
    found = queue.analyze(GRID * most_per_ms)
    waiting = GRID * most_per_ms * found.wait_ms
    return Table(
        float(1000 * most_per_ms[0]),
        tuple(found.ttft_ms.tolist()),
        tuple(found.itl_ms.tolist()),
        tuple((found.in_service + waiting).tolist()),
    )


def _added(before: Counters, more: Counters, present: float) -> Counters:
    names = [each.name for each in fields(Counted)]
    sums = {name: getattr(before, name) + getattr(more, name) for name in names}
    return Counters(before.at_s, running=present, **sums)
