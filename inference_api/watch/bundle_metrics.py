"""Metrics of the members of a bundle, read at each scrape."""

import time
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference_api.bundle.members import MemberSnapshot, MemberState
from inference_api.bundle.residents import bundle_of
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.input_queue import InputQueue
from inference_api.watch.metrics import MODEL


class BundleCollector(Collector):
    """Yields families without samples before the members are known."""

    def __init__(self, backend: DecodeBackend, input_queue: InputQueue) -> None:
        self._backend = backend
        self._input_queue = input_queue

    def collect(self) -> Iterable[Metric]:
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
        residents = bundle_of(self._backend)
        members: Mapping[str, MemberSnapshot] = {}
        if residents is not None:
            members = residents.snapshot.members
        waiting, now_s = self._input_queue.all_waiting(), time.monotonic()
        for name, each in members.items():
            for known in MemberState:
                state.add_metric([name, known], float(each.state is known))
            taken.add_metric([name, "weights"], each.weights_bytes)
            taken.add_metric([name, "other"], each.other_bytes)
            taken.add_metric([name, "cache"], each.cache_bytes)
            waited_s = now_s - waiting[name].oldest_came_s if name in waiting else 0.0
            wait.add_metric([name], waited_s)
            loads.add_metric([name], each.num_loads)
            for eviction, count in each.evictions.items():
                evictions.add_metric([name, eviction], count)
            for failure, count in each.failures.items():
                failures.add_metric([name, failure], count)
        yield from (state, taken, wait, loads, evictions, failures)
