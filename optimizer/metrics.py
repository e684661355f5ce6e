"""Gauges of replicas, for autoscalers. Any thread.

Hearth's gauge is by server and accelerator. Inferno's gauges, and their new names in version 0.5 of
llm-d's Workload Variant Autoscaler (WVA), have the labels that HPAs and KEDA triggers of both
select by.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from optimizer.spec import AllocationData
from optimizer.state import SystemState

PREFIXES = ("inferno", "wva")
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


@dataclass(frozen=True, slots=True)
class _Gauge:
    name: str
    help: str
    value: Callable[[_Replicas], float | None]
    labels: tuple[str, ...] = ("variant_name", "namespace", "accelerator_type")

    def family(self, prefix: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{prefix}_{self.name}", self.help, labels=self.labels)

    def filled(
        self, prefix: str, replicas: Iterable[tuple[Labels, _Replicas]]
    ) -> GaugeMetricFamily:
        family = self.family(prefix)
        for labels, found in replicas:
            if (value := self.value(found)) is not None:
                family.add_metric(labels, value)
        return family


_DESIRED = _Gauge(
    "desired_replicas",
    "Replicas that the last solve wants a server to have on an accelerator.",
    lambda replicas: replicas.desired,
)
_GAUGES = (
    _DESIRED,
    _Gauge(
        "current_replicas",
        "Replicas that a server runs on an accelerator.",
        lambda replicas: replicas.current,
    ),
    _Gauge(
        "desired_ratio",
        "Desired by current replicas; the desired ones where none run.",
        lambda replicas: replicas.ratio,
    ),
)
_OURS = replace(_DESIRED, labels=("server", "accelerator"))


class ReplicaGauges(Collector):
    """Reads gauges from the state at every scrape. A pair that was once published stays at 0 when
    its server moves or is removed, because autoscalers keep the last value of a missing series."""

    def __init__(self, state: Callable[[], SystemState], namespace: str = "default") -> None:
        """`namespace` is for servers without one in their names."""
        self._state = state
        self._namespace = namespace
        self._lock = threading.Lock()
        self._published: dict[Pair, None] = {}  # in the order of their last publication

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = self._state()
        replicas = dict(_replicas(state))
        replicas |= {
            (server, accelerator): _Replicas(0, 0 if _is_decided(state, server) else None)
            for server, accelerator in self._remember(replicas)
        }
        yield _OURS.filled("optimizer", replicas.items())
        variants = {self._variant(*pair): found for pair, found in replicas.items()}
        for prefix in PREFIXES:
            for gauge in _GAUGES:
                yield gauge.filled(prefix, variants.items())

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Returns names only, so that registering does not scrape."""
        theirs = [gauge.family(prefix) for prefix in PREFIXES for gauge in _GAUGES]
        return [_OURS.family("optimizer"), *theirs]

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
        name, namespace = (full[1], full[2]) if full else (server, self._namespace)
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
            wanted = desired[accelerator] if is_decided else None
            yield (name, accelerator), _Replicas(current[accelerator], wanted)


def _by_accelerator(allocation: AllocationData) -> Counter[str]:
    replicas: Counter[str] = Counter()
    for part in allocation.each_part():
        replicas[part.accelerator] += part.num_replicas
    return replicas


def _is_decided(state: SystemState, name: str) -> bool:
    """Returns whether the last solve decided a server's replicas; True for a removed one."""
    server = state.system.servers.get(name)
    return server is None or name in state.allocated or bool(server.desired_alloc.each_part())
