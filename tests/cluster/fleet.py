"""A small cluster without processes: an actuator in memory, replicas that count, a system."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.config import AcceleratorKeys, ClusterConfig, ServerKeys
from cluster.controller.pages import Readings
from cluster.engines import Counters
from cluster.errors import MetricsUnread
from cluster.replicas import Group, Outcome, Replica, ReplicaState
from cluster.system import SystemDocument, read_system

IN_TOKENS, OUT_TOKENS = 100, 50


class MemoryActuator:
    """`cards` is how many replicas of an accelerator there is room for. Nothing happens by itself:
    `settle` makes the starting ready and the draining gone."""

    def __init__(self, cards: dict[str, int] | None = None) -> None:
        self._cards, self._replicas = cards or {}, dict[str, Replica]()
        self._number = 0
        self.calls: list[tuple[str, Group, int]] = []

    def replicas(self) -> Sequence[Replica]:
        return [self._replicas[name] for name in sorted(self._replicas)]

    def start(self, group: Group, count: int) -> Outcome:
        self.calls.append(("start", group, count))
        missing = count - self._count(group)
        for number in range(max(missing, 0)):
            if self._room(group.accelerator) < 1:
                return Outcome(missing - number, "no card is free")
            self._number += 1
            name = f"r{self._number:04}"
            self._replicas[name] = Replica(name, group, ReplicaState.STARTING, f"http://{name}")
        return Outcome()

    def stop(self, group: Group, count: int) -> None:
        self.calls.append(("stop", group, count))
        there = [
            r for r in self.replicas() if r.group == group and r.state is not ReplicaState.DRAINING
        ]
        going = sorted(there, key=lambda r: r.state is ReplicaState.READY)[
            : max(len(there) - count, 0)
        ]
        for each in going:
            self._replicas[each.name] = replace(each, state=ReplicaState.DRAINING)

    def close(self) -> None:
        self.calls.clear()

    def settle(self) -> None:
        ready = {
            ReplicaState.STARTING: ReplicaState.READY,
            ReplicaState.READY: ReplicaState.READY,
            ReplicaState.FAILED: ReplicaState.FAILED,
        }
        self._replicas = {
            name: replace(each, state=ready[each.state])
            for name, each in self._replicas.items()
            if each.state in ready
        }

    def lose(self, name: str) -> None:
        """As when a node is lost."""
        del self._replicas[name]

    def ready(self) -> Counter[Group]:
        return Counter(each.group for each in self.replicas() if each.state is ReplicaState.READY)

    def _count(self, group: Group) -> int:
        return sum(
            each.group == group and each.state in (ReplicaState.STARTING, ReplicaState.READY)
            for each in self._replicas.values()
        )

    def _room(self, accelerator: str) -> int:
        taken = sum(each.group.accelerator == accelerator for each in self._replicas.values())
        return self._cards.get(accelerator, 10**6) - taken


class CountingReader:
    """Replicas that count what `serve` sends them, as their /metrics would."""

    def __init__(self) -> None:
        self.counters: dict[str, Counters] = {}
        self.broken: set[str] = set()
        self.waiting = 0.0
        self.at_s = 0.0

    def serve(
        self,
        replicas: Sequence[Replica],
        requests: float,
        *,
        ttft_ms: float = 100.0,
        itl_ms: float = 10.0,
    ) -> None:
        """So many requests come and end, dealt evenly to those that are ready."""
        ready = [each for each in replicas if each.state is ReplicaState.READY]
        for each in ready:
            share, now = requests / len(ready), self.counters.get(each.name, Counters(0.0))
            self.counters[each.name] = replace(
                now,
                ended=now.ended + share,
                prompt_tokens=now.prompt_tokens + share * IN_TOKENS,
                completion_tokens=now.completion_tokens + share * OUT_TOKENS,
                ttft_s=now.ttft_s + share * ttft_ms / 1000,
                ttft_count=now.ttft_count + share,
                itl_s=now.itl_s + share * (OUT_TOKENS - 1) * itl_ms / 1000,
                itl_count=now.itl_count + share * (OUT_TOKENS - 1),
            )

    def read(self, replicas: Sequence[Replica]) -> Readings:
        return {
            each.name: MetricsUnread("it does not answer")
            if each.name in self.broken
            else replace(self.counters.get(each.name, Counters(0.0)), at_s=self.at_s)
            for each in replicas
            if each.state in (ReplicaState.READY, ReplicaState.DRAINING)
        }

    def waiting_at_door(self) -> float:
        return self.waiting

    def close(self) -> None: ...


def system_json(rate: float = 0.0, **server: Any) -> dict[str, Any]:
    """Server s of model m in class c, on accelerators A (one card) and B (faster and dearer)."""
    speeds = {"A": (10.0, 0.5, 20.0, 0.05), "B": (5.0, 0.2, 10.0, 0.02)}
    load = {"arrivalRate": rate, "avgInTokens": IN_TOKENS, "avgOutTokens": OUT_TOKENS}
    return {"system": {
        "acceleratorData": {"accelerators": [
            {"name": "A", "type": "A", "cost": 10.0}, {"name": "B", "type": "B", "cost": 40.0}]},
        "capacityData": {"count": [{"type": "A", "count": 50}, {"type": "B", "count": 50}]},
        "modelData": {"models": [
            {"name": "m", "acc": acc, "maxBatchSize": 16, "atTokens": OUT_TOKENS,
             "decodeParms": {"alpha": alpha, "beta": beta},
             "prefillParms": {"gamma": gamma, "delta": delta}}
            for acc, (alpha, beta, gamma, delta) in speeds.items()]},
        "serviceClassData": {"serviceClasses": [
            {"name": "c", "priority": 1,
             "modelTargets": [{"model": "m", "slo-ttft": 500, "slo-itl": 25}]}]},
        "serverData": {"servers": [
            {"name": "s", "class": "c", "model": "m", "minNumReplicas": 1, **server,
             "currentAlloc": {"load": load}}]},
        "optimizerData": {"optimizer": {}},
    }}  # fmt: skip


def system(document: dict[str, Any]) -> SystemDocument:
    import json

    return read_system(json.dumps(document).encode())


def config(document: SystemDocument, **keys: Any) -> ClusterConfig:
    return ClusterConfig(
        **{
            "system": "system.json",
            "optimizer": "http://127.0.0.1:1",
            "servers": {name: ServerKeys() for name in document.servers},
            "accelerators": {name: AcceleratorKeys() for name in document.accelerators},
            **keys,
        }
    )
