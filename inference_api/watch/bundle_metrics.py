"""Metrics of a bundle's members, read at each scrape."""

import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference_api.bundle.members import MemberState
from inference_api.bundle.residents import bundle_of
from inference_api.core.decode_backend import DecodeBackend
from inference_api.watch.metrics import MODEL


class BundleCollector(Collector):
    """Collects the metrics. Before the members are known, families have no samples."""

    def __init__(self, backend: DecodeBackend) -> None:
        self._backend = backend

    def collect(self) -> Iterable[Metric]:
        state = _gauge("state", "1 for the state that an expert is in.", "state")
        taken = _gauge("bytes", "Memory of an expert, by kind.", "kind")
        wait = _gauge("oldest_wait_seconds", "How long the oldest request of an expert has waited.")
        loads = _counter("loads", "Times an expert was brought into memory.")
        evictions = _counter("evictions", "Times an expert left the memory, by why.", "reason")
        failures = _counter("failures", "Times an expert could not be loaded, by why.", "reason")
        residents = bundle_of(self._backend)
        members = {} if residents is None else residents.snapshot.members
        waiting, now_s = self._backend.input_queue.all_waiting(), time.monotonic()
        for name, each in members.items():
            for kind in MemberState:
                state.add_metric([name, kind], float(each.state is kind))
            taken.add_metric([name, "weights"], each.weights_bytes)
            taken.add_metric([name, "other"], each.other_bytes)
            taken.add_metric([name, "cache"], each.cache_bytes)
            wait_s = now_s - waiting[name].oldest_arrived_s if name in waiting else 0.0
            wait.add_metric([name], wait_s)
            loads.add_metric([name], each.num_loads)
            for eviction, count in each.evictions.items():
                evictions.add_metric([name, eviction], count)
            for failure, count in each.failures.items():
                failures.add_metric([name, failure], count)
        yield from (state, taken, wait, loads, evictions, failures)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"hearth:expert_{name}", text, labels=[MODEL, *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"hearth:expert_{name}", text, labels=[MODEL, *labels])
