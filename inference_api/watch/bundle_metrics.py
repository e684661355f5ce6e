"""Metrics of the members of a bundle, read at each scrape."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference_api.watch.metrics import MODEL


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """Figures of one member at one moment: `bytes` by kind, counts by reason."""

    state: str
    bytes: Mapping[str, int]
    loads: int
    evictions: Mapping[str, int]
    failures: Mapping[str, int]
    oldest_wait_s: float


class BundleCollector(Collector):
    """`figures` returns the figures of members by name; empty before members are known."""

    def __init__(
        self, states: Iterable[str], figures: Callable[[], Mapping[str, MemberFigures]]
    ) -> None:
        self._states = tuple(states)
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures = self._figures()
        state = GaugeMetricFamily(
            "hearth:expert_state", "1 for the state that an expert is in.", labels=[MODEL, "state"]
        )
        taken = GaugeMetricFamily(
            "hearth:expert_bytes", "Memory of an expert, by kind.", labels=[MODEL, "kind"]
        )
        wait = GaugeMetricFamily(
            "hearth:expert_oldest_wait_seconds",
            "How long the oldest request of an expert has waited.",
            labels=[MODEL],
        )
        loads = CounterMetricFamily(
            "hearth:expert_loads", "Times an expert was brought into memory.", labels=[MODEL]
        )
        evictions = CounterMetricFamily(
            "hearth:expert_evictions",
            "Times an expert left the memory, by why.",
            labels=[MODEL, "reason"],
        )
        failures = CounterMetricFamily(
            "hearth:expert_failures",
            "Times an expert could not be loaded, by why.",
            labels=[MODEL, "reason"],
        )
        for name, each in figures.items():
            for known in self._states:
                state.add_metric([name, known], float(each.state == known))
            for kind, num_bytes in each.bytes.items():
                taken.add_metric([name, kind], num_bytes)
            wait.add_metric([name], each.oldest_wait_s)
            loads.add_metric([name], each.loads)
            for reason, count in each.evictions.items():
                evictions.add_metric([name, reason], count)
            for reason, count in each.failures.items():
                failures.add_metric([name, reason], count)
        yield from (state, taken, wait, loads, evictions, failures)
