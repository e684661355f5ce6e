"""Gauges of replicas, for autoscalers. Any thread.

Hearth's gauge is by server and accelerator. Inferno's gauges, and their new names in version 0.5 of
llm-d's Workload Variant Autoscaler (WVA), have the labels that HPAs and KEDA triggers of both
select by.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from optimizer.spec import AllocationData
from optimizer.state import SystemState

PREFIXES = ("inferno", "wva")
VARIANT_LABELS = ("variant_name", "namespace", "accelerator_type")
MAX_REMEMBERED = 10_000  # remembered pairs of server and accelerator that once had replicas

# A server's name may contain its namespace, a DNS label.
_FULL_NAME = re.compile(r"([^:]+):([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)")

Labels = tuple[str, ...]
Pair = tuple[str, str]  # server, accelerator


@dataclass(frozen=True, slots=True)
class _Replicas:
    current: int
    desired: int | None  # None if the last solve found nothing: an autoscaler then changes nothing

    @property
    def ratio(self) -> float | None:
        return None if self.desired is None else self.desired / (self.current or 1)


_Labelled = Iterable[tuple[Labels, _Replicas]]
_GAUGES: Mapping[str, tuple[str, Callable[[_Replicas], float | None]]] = {
    "desired_replicas": (
        "Replicas that the last solve wants a server to have on an accelerator.",
        lambda replicas: replicas.desired,
    ),
    "current_replicas": (
        "Replicas that a server runs on an accelerator.",
        lambda replicas: replicas.current,
    ),
    "desired_ratio": (
        "Desired by current replicas; the desired ones where none run.",
        lambda replicas: replicas.ratio,
    ),
}


def _family(prefix: str, name: str, labels: Labels, replicas: _Labelled) -> GaugeMetricFamily:
    text, value = _GAUGES[name]
    family = GaugeMetricFamily(f"{prefix}_{name}", text, labels=labels)
    for values, replica_counts in replicas:
        if (figure := value(replica_counts)) is not None:
            family.add_metric(values, figure)
    return family


@dataclass(slots=True, eq=False)
class ReplicaGauges(Collector):
    """Reads gauges from the state at every scrape. A pair that was once published stays at 0 when
    its server moves or is removed, because autoscalers keep the last value of a missing series."""

    state: Callable[[], SystemState]
    namespace: str = "default"  # for servers without one in their names
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _published: dict[Pair, None] = field(default_factory=dict)  # the last published comes last

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = self.state()
        replicas = dict(_replicas(state))
        replicas |= {
            (server, accelerator): _Replicas(0, 0 if _is_decided(state, server) else None)
            for server, accelerator in self._remember(replicas)
        }
        variants = {self._variant(*pair): counts for pair, counts in replicas.items()}
        labels = "server", "accelerator"
        yield _family("optimizer", "desired_replicas", labels, replicas.items())
        for prefix in PREFIXES:
            for name in _GAUGES:
                yield _family(prefix, name, VARIANT_LABELS, variants.items())

    def _remember(self, replicas: Mapping[Pair, _Replicas]) -> list[Pair]:
        """Record the published pairs. Returns earlier pairs that are no longer among them."""
        with self._lock:
            for pair in replicas:
                self._published.pop(pair, None)
                self._published[pair] = None
            surplus = len(self._published) - max(MAX_REMEMBERED, len(replicas))
            for pair in list(self._published)[: max(surplus, 0)]:
                del self._published[pair]
            return [pair for pair in self._published if pair not in replicas]

    def _variant(self, server: str, accelerator: str) -> Labels:
        full = _FULL_NAME.fullmatch(server)
        name, namespace = (full[1], full[2]) if full else (server, self.namespace)
        return name, namespace, accelerator


def _replicas(state: SystemState) -> Iterator[tuple[Pair, _Replicas]]:
    """Yields current and desired replicas, by server and accelerator."""
    for name, server in state.system.servers.items():
        current = _by_accelerator(server.current_alloc)
        desired = _by_accelerator(server.desired_alloc)
        is_decided = _is_decided(state, name)
        accelerators = list(dict.fromkeys([*current, *desired]))
        if is_decided and not accelerators:  # scaled to zero, and nothing runs
            accelerators = [server.current_alloc.accelerator]
        for accelerator in accelerators:
            desired_replicas = desired[accelerator] if is_decided else None
            yield (name, accelerator), _Replicas(current[accelerator], desired_replicas)


def _by_accelerator(allocation: AllocationData) -> Counter[str]:
    replicas: Counter[str] = Counter()
    for part in allocation.each_part():
        replicas[part.accelerator] += part.num_replicas
    return replicas


def _is_decided(state: SystemState, name: str) -> bool:
    """Returns whether the last solve decided a server's replicas; True for a removed one."""
    server = state.system.servers.get(name)
    return server is None or name in state.allocated or bool(server.desired_alloc.each_part())
