"""A controller cycle: collect, learn, ask, stabilise. Makes a plan, which `Rollout` executes."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

from pydantic import PlainSerializer

from cluster.config import ClusterConfig
from cluster.controller.demand import (
    Demand,
    OfferedLoad,
    Past,
    ServerTraffic,
    expected_load,
    traffic_of,
    with_door,
)
from cluster.controller.forecasts import (
    ARRIVALS,
    Forecast,
    Forecasts,
    JudgedForecast,
    JudgedForecasts,
    Score,
)
from cluster.controller.optimizer import OptimizerClient, OptimizerReply
from cluster.controller.pages import Reader, Readings
from cluster.controller.question import (
    ReplicaNeeds,
    Standing,
    groups_of,
    latency_question,
    question,
)
from cluster.controller.rollout import Plan, running
from cluster.controller.sleep import Sleep, StartForecast
from cluster.controller.speeds import LEAST_ENDED, Learned, Speeds
from cluster.errors import MetricsUnread, OptimizerUnusable
from cluster.replicas import Group, Replica, ReplicaState
from cluster.system import Json, SystemDocument

LEAST_S = 1.0  # least time between two readings
# Share of a stabilisation window that must pass. Cycles run a few milliseconds early or late, so a
# whole window of two periods would often last three.
WINDOW_PART = 0.95
LEVELS = ("TTFT:", "ITL:")  # begin the optimizer's reason if no number of replicas meets a level
FACTORS = [2**number for number in range(11)]  # on levels that are not met, until they are
NO_STARTS: Mapping[str, StartForecast] = {}


@dataclass(frozen=True, slots=True)
class Latencies:
    ttft_ms: float | None = None
    itl_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ServerCycle:
    """One server in one cycle. `predicted` holds the model's latencies for the running replicas at
    the measured load, with the speeds known before the measurement. In JSON, `load` is in the
    optimizer's terms."""

    plan: Plan
    load: Annotated[OfferedLoad, PlainSerializer(OfferedLoad.as_json)]
    arrived_per_minute: float | None = None
    measured: Latencies = Latencies()
    predicted: Latencies = Latencies()
    planned: Latencies = Latencies()
    """The model's latencies for the plan at the load it is for."""
    held: str = ""
    """Why the server was not changed; empty if it could change."""
    has_changed: bool = False
    is_short: bool = False
    """Whether cards or a limit keep the plan below the replicas that the load needs."""
    unmet: str = ""
    """Why the plan is for longer levels: no number of replicas meets the server's own."""
    missed: tuple[str, ...] = ()
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """Forecasts of the next period, by figure."""
    judged: Mapping[str, JudgedForecast] = field(default_factory=dict)
    """The previous cycle's forecasts, judged by measurements, by figure."""
    scores: Mapping[str, Score] = field(default_factory=dict)
    """Accuracy of earlier forecasts, by figure."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle's observations, question, answer and decisions. Immutable: any thread."""

    number: int
    at_s: float
    seconds: float
    servers: Mapping[str, ServerCycle]
    plan: Plan
    learned: Learned
    question: Json = field(default_factory=dict)
    answer: OptimizerReply | None = None
    fault: str = ""
    """Why there is no new plan; empty if there is one."""


@dataclass(frozen=True, slots=True)
class ControllerParts:
    """The parts that a planner uses."""

    config: ClusterConfig
    system: SystemDocument
    optimizer: OptimizerClient
    reader: Reader


class Planner:
    """Makes plans; `plan` is the current one. Controller thread only."""

    def __init__(
        self, parts: ControllerParts, replicas: Sequence[Replica], past: Past | None = None
    ) -> None:
        """Takes the running replicas as the first plan."""
        past, scale_down_s = past or Past(), parts.config.scale_down_s
        self._parts = parts
        self._speeds = Speeds(parts.system, parts.optimizer)
        self._forecasts = Forecasts(past.judged)
        self._demands = {
            name: Demand(expected_load(parts.system, name), scale_down_s, past.loads.get(name))
            for name in parts.system.servers
        }
        self._before: Readings = {}
        self._before_s: float | None = None
        self._traffic: dict[str, ServerTraffic] = {}
        self._door: float | None = None
        self._ready: Counter[Group] = Counter()
        self._changed_s: dict[str, float] = {}
        self._needs = ReplicaNeeds()
        self._sleep = Sleep(parts.config.idle_s(parts.system))
        self._number = 0
        self.plan: Plan = {
            group: count
            for group, count in running(replicas).items()
            if group.server in parts.system.servers
        }

    def wake(self, servers: Iterable[str], at_s: float) -> bool:
        """Note requests for these servers. Returns whether any of them has no replicas in the plan,
        so that a cycle should run now."""
        servers = set(servers)
        for name in servers:
            self._sleep.note(name, at_s)
        return bool(servers - {group.server for group, count in self.plan.items() if count})

    def cycle(
        self,
        replicas: Sequence[Replica],
        at_s: float,
        starts: Mapping[str, StartForecast] = NO_STARTS,
    ) -> Cycle:
        """Make the next plan. `at_s` is the time on the reader's clock; `starts` are by server."""
        start_s = time.perf_counter()
        self._number += 1
        present = {each.group for each in replicas}
        self.plan = {group: n for group, n in self.plan.items() if n or group in present}
        steady = self._steady(replicas)
        traffic = self._collect(replicas, at_s, starts)
        predicted = self._predict(traffic, steady)
        learned = Learned()
        judged: JudgedForecasts = {}
        if is_read := self._before_s == at_s:
            judged = self._judge(traffic, steady)
            if self._parts.config.tune:
                learned = self._speeds.learn(traffic, steady, at_s)
        self._note_requests(traffic, at_s)
        awake, asleep = self._sleep.awake(at_s), self._sleep.asleep(at_s)
        for name in asleep:
            self._demands[name].rest()
        held = self._held(traffic, awake, at_s)
        loads = {name: demand.load for name, demand in self._demands.items()}
        unsure = {name for name, each in self._demands.items() if not each.is_known(at_s)}
        standing = Standing(
            self.plan, loads, self._speeds.perf, held.keys(), unsure - asleep, awake
        )
        body, answer, fault = self._ask(standing)
        if answer and (early := self._needs.lost_early(answer, standing, asleep, starts, at_s)):
            unsure = {*standing.unsure, *early}
            body, answer, fault = self._ask(replace(standing, unsure=unsure))
        servers = {
            name: self._decide(name, answer, held, at_s) for name in self._parts.system.servers
        }
        self.plan = {g: n for each in servers.values() for g, n in each.plan.items()}
        forecasts = self._forecasts_of(traffic) if is_read else {}
        observed = {
            name: replace(
                _observed(each, traffic.get(name), predicted.get(name, Latencies())),
                forecasts=forecasts.get(name, {}),
                judged=judged.get(name, {}),
                scores=self._forecasts.scores(name),
            )
            for name, each in servers.items()
        }
        seconds = time.perf_counter() - start_s
        return Cycle(self._number, at_s, seconds, observed, self.plan, learned, body, answer, fault)

    def _ask(self, standing: Standing) -> tuple[Json, OptimizerReply | None, str]:
        """Returns the question, the answer (None without one), and why there is no answer.

        There may be no number of replicas that meets a server's levels. The question is then asked
        again, with levels longer by as much as machines are slower than in the document; meanwhile
        the server gets no fewer replicas. If that is not enough, levels are doubled until it is.
        `unallocated` in the answer still has the levels that are not met."""
        system, slow = self._parts.system, dict[tuple[str, str], float]()
        unmet, unsure = dict[str, str](), set[str]()
        body = question(system, standing)
        try:
            answer = self._parts.optimizer.solve(body)
            for factor in FACTORS:
                late = {n: why for n, why in answer.unallocated.items() if why.startswith(LEVELS)}
                if not late:
                    break
                unmet = late | unmet
                unsure = unsure | late.keys() if factor == 1 else unsure - late.keys()
                for name in late.keys() & system.servers.keys():
                    model = str(system.servers[name].get("model"))
                    slow[system.class_of(name), model] = factor * self._speeds.slowness(model)
                all_unsure = {*standing.unsure, *unsure}
                body = question(system, replace(standing, unsure=all_unsure, slowness=slow))
                answer = self._parts.optimizer.solve(body)
            unallocated = {**answer.unallocated, **unmet}
            return body, answer.model_copy(update={"unallocated": unallocated}), ""
        except OptimizerUnusable as error:
            return body, None, str(error)

    def _steady(self, replicas: Sequence[Replica]) -> dict[Group, int]:
        """Returns how many replicas of each group have been ready since the last cycle. Leaves out
        servers whose number changed, because their replicas' shares of the load are not known."""
        ready = Counter(each.group for each in replicas if each.state is ReplicaState.READY)
        before, self._ready = self._ready, ready
        changed = {g.server for g in {*before, *ready} if before[g] != ready[g]}
        return {group: n for group, n in ready.items() if group.server not in changed}

    def _collect(
        self, replicas: Sequence[Replica], at_s: float, starts: Mapping[str, StartForecast]
    ) -> dict[str, ServerTraffic]:
        """Returns the traffic since the last cycle, and updates the demands. Within LEAST_S of the
        last cycle, returns that cycle's traffic: so short a time gives no rate."""
        if self._before_s is not None and 0 <= at_s - self._before_s < LEAST_S:
            return self._traffic
        now = self._parts.reader.read(replicas)
        traffic = traffic_of(replicas, self._before, now, self._before_s)
        try:
            door = self._parts.reader.waiting_at_door()
            if self._door is not None:
                traffic = with_door(traffic, door, door - self._door)
            self._door = door
        except MetricsUnread:
            self._door = None
        self._before, self._before_s = now, at_s
        for name, each in traffic.items():
            if not each.unread and name in self._demands:
                start_s = starts.get(name, StartForecast()).longest_s or 0.0
                self._demands[name].see(each.all, at_s, start_s)
        self._traffic = {name: each for name, each in traffic.items() if name in self._demands}
        return self._traffic

    def _predict(
        self, traffic: Mapping[str, ServerTraffic], steady: Mapping[Group, int]
    ) -> dict[str, Latencies]:
        """Returns the latencies that the model predicts for the running replicas at the measured
        traffic, before it learns from the traffic."""
        loads = {name: demand.load for name, demand in self._demands.items()}
        for name, each in traffic.items():
            if each.all.ended:
                loads[name] = OfferedLoad.of(each.all.per_minute, *each.all.mean_tokens)
        return self._latencies({g: n for g, n in steady.items() if g.server in traffic}, loads)

    def _latencies(self, plan: Plan, loads: Mapping[str, OfferedLoad]) -> dict[str, Latencies]:
        """Returns the latencies that the model predicts for these replicas under these loads."""
        if not plan:
            return {}
        body = latency_question(self._parts.system, Standing(plan, loads, self._speeds.perf))
        try:
            answer = self._parts.optimizer.solve(body)
        except OptimizerUnusable:
            return {}
        return {
            name: Latencies(each.ttft_average, each.itl_average)
            for name, each in answer.allocations.items()
        }

    def _judge(
        self, traffic: Mapping[str, ServerTraffic], steady: Mapping[Group, int]
    ) -> JudgedForecasts:
        """Compares the last cycle's forecasts with measurements. Compares latencies only of servers
        whose replicas did not change, and nothing if the cycle was invoked early."""
        judged = {}
        for name in self._demands:
            seen = traffic.get(name, ServerTraffic(unread="it has no replicas"))
            measured: dict[str, float | None] = {}
            if not seen.unread and seen.all.seconds >= self._parts.config.period_s / 2:
                measured[ARRIVALS] = seen.all.per_minute
                if seen.all.ended >= LEAST_ENDED and any(g.server == name for g in steady):
                    measured |= {"ttft_ms": seen.all.ttft_ms, "itl_ms": seen.all.itl_ms}
            judged[name] = self._forecasts.judge(name, measured)
        return judged

    def _forecasts_of(self, traffic: Mapping[str, ServerTraffic]) -> dict[str, dict[str, Forecast]]:
        """Returns forecasts for ready replicas in the next period, by server, for those with
        traffic."""
        coming = {name: demand.next for name, demand in self._demands.items()}
        predicted = self._latencies(self._ready, coming) if traffic else {}
        forecasts = {}
        for name, each in traffic.items():
            if not each.unread:
                latencies = asdict(predicted.get(name, Latencies()))
                figures = {ARRIVALS: coming[name].per_minute, **latencies}
                forecasts[name] = self._forecasts.make(name, figures)
        return forecasts

    def _note_requests(self, traffic: Mapping[str, ServerTraffic], at_s: float) -> None:
        """Note a request for every server with traffic. In the first cycle, also note one for
        servers that run or expect a load."""
        requested = {
            name
            for name, each in traffic.items()
            if each.unread or each.all.arrived or each.all.present
        }
        if self._number == 1:
            requested |= {group.server for group, count in self.plan.items() if count}
            requested |= {name for name, each in self._demands.items() if each.load.per_minute}
        for name in requested:
            self._sleep.note(name, at_s)

    def _held(
        self, traffic: Mapping[str, ServerTraffic], awake: Collection[str], at_s: float
    ) -> dict[str, str]:
        """Returns the servers that must not change in this cycle, with reasons."""
        held = {}
        window_s = self._parts.config.stabilization_s
        for name in self._parts.system.servers:
            passed_s = at_s - self._changed_s.get(name, float("-inf"))
            runs = any(group.server == name and count for group, count in self.plan.items())
            seen = traffic.get(name)
            if runs and seen is None:
                held[name] = "no replica could be asked yet"
            elif runs and seen is not None and seen.unread:
                held[name] = f"its metrics are not read: {seen.unread}"
            elif passed_s < WINDOW_PART * window_s and (runs or name not in awake):
                held[name] = f"changed {passed_s:.0f} s ago, less than {window_s:g} s"
        return held

    def _decide(
        self, name: str, answer: OptimizerReply | None, held: Mapping[str, str], at_s: float
    ) -> ServerCycle:
        current = {g: n for g, n in self.plan.items() if g.server == name}
        load = self._demands[name].load
        if answer is None:
            return ServerCycle(current, load, held="the optimizer gave no plan")
        allocation, unmet = answer.allocations.get(name), answer.unallocated.get(name, "")
        planned = Latencies()
        if allocation is not None:
            planned = Latencies(allocation.ttft_average, allocation.itl_average)
        if name in held:
            return ServerCycle(current, load, planned=planned, held=held[name])
        if allocation is None:
            why = unmet or "the optimizer does not say why"
            return ServerCycle(current, load, held=f"no allocation: {why}")
        wanted = groups_of(name, allocation)
        is_short = name in answer.details and answer.details[name].best_effort
        has_changed = wanted != {group: count for group, count in current.items() if count}
        if has_changed:
            self._changed_s[name] = at_s
            # Groups to remove stay in the plan with 0 replicas, because a server that has no group
            # in the plan keeps its replicas.
            current = dict.fromkeys(current, 0) | wanted
        return ServerCycle(
            current, load, planned=planned, has_changed=has_changed, is_short=is_short, unmet=unmet
        )


def _observed(
    decided: ServerCycle, seen: ServerTraffic | None, predicted: Latencies
) -> ServerCycle:
    if seen is None or seen.unread:
        return decided
    return replace(
        decided,
        arrived_per_minute=seen.all.per_minute,
        measured=Latencies(seen.all.ttft_ms, seen.all.itl_ms),
        predicted=predicted,
        missed=seen.missed,
    )
