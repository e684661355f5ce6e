"""The proxy's Prometheus metrics: every name is declared here.

The event loop counts requests in plain numbers, which become Prometheus metrics at each scrape: the
library's own counters and histograms take 9 us per request (measured by hand).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from proxy.audit import AuditRecord
from proxy.upstreams.balancer import Balancer

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
NO_TEAM = "-"  # for requests that were refused before their team was known

Gauges = dict[str, tuple[str, Callable[[], int]]]  # name: (meaning, reader of its value)
Totals = defaultdict[tuple[object, ...], float]  # keys: values of labels

PREFIX = "hearth_proxy_"
COUNTERS = {  # name: (meaning, labels)
    "requests": (
        "Requests by team, status sent to the client and outcome.",
        ("team_id", "status", "outcome"),
    ),
    "server_requests": (
        "Requests answered by a server with a name, by status.",
        ("server", "status"),
    ),
    "tokens": ("Tokens of finished answers.", ("team_id", "kind")),
    "cost": ("Cost of finished answers.", ("team_id", "currency")),
    "replica_cents": (
        "What servers with a price cost, shared among their requests.",
        ("team_id",),
    ),
    "bytes": ("Body bytes relayed.", ("direction",)),
}


class Durations:
    """A histogram of durations. The event loop writes it; any thread may read it."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def observe(self, duration_ms: float) -> None:
        duration_s = duration_ms / 1000
        self._counts[bisect_left(LATENCY_BUCKETS_S, duration_s)] += 1
        self._sum_s += duration_s

    def family(self, name: str, text: str) -> Metric:
        total, buckets = 0, []
        bounds = (*map(floatToGoString, LATENCY_BUCKETS_S), "+Inf")
        for bound, count in zip(bounds, list(self._counts), strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum_s)


class Metrics(Collector):
    """`record`: event loop only. `collect`: any thread. Each app has a registry of its own."""

    def __init__(self, balancer: Balancer, gauges: Gauges) -> None:
        self._balancer = balancer
        self._gauges = gauges
        self._totals = {name: Totals(float) for name in COUNTERS}
        self._head, self._ttft, self._total = Durations(), Durations(), Durations()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def record(self, record: AuditRecord) -> None:
        team_id = record.team_id or NO_TEAM
        self._add("requests", 1, team_id, record.status, record.outcome)
        if record.server is not None:
            self._add("server_requests", 1, record.server, record.status)
        self._add("bytes", record.bytes_in, "in")
        self._add("bytes", record.bytes_out, "out")
        self._add("tokens", record.prompt_tokens, team_id, "prompt")
        self._add("tokens", record.completion_tokens, team_id, "completion")
        self._add("tokens", record.cached_tokens, team_id, "cached")
        if record.currency is not None:
            self._add("cost", record.cost, team_id, record.currency)
        self._add("replica_cents", record.replica_cents, team_id)
        if record.queue_ms is not None:
            self._head.observe(record.queue_ms)
        if record.ttft_ms is not None:
            self._ttft.observe(record.ttft_ms)
        self._total.observe(record.total_ms)

    def _add(self, name: str, amount: float | None, *labels: object) -> None:
        if amount is not None:
            self._totals[name][labels] += amount

    def collect(self) -> Iterable[Metric]:
        for name, (meaning, labels) in COUNTERS.items():
            family = CounterMetricFamily(PREFIX + name, meaning, labels=labels)
            for values, total in self._totals[name].copy().items():
                family.add_metric([*map(str, values)], total)
            yield family
        name, text = "hearth_proxy_{}_seconds", "From the request to the "
        yield self._head.family(name.format("head"), text + "upstream's head.")
        yield self._ttft.family(name.format("ttft"), text + "first body byte.")
        yield self._total.family(name.format("request"), text + "last byte.")
        for gauge, (meaning, value) in self._gauges.items():
            yield GaugeMetricFamily(gauge, meaning, value=value())
        yield from self._upstreams()

    def _upstreams(self) -> Iterable[Metric]:
        """Returns the load and health of each upstream now."""
        in_flight = GaugeMetricFamily(
            "hearth_proxy_upstream_in_flight", "Requests at the upstream.", labels=["upstream"]
        )
        usable = GaugeMetricFamily(
            "hearth_proxy_upstream_usable",
            "1 if it passes its checks and is not ejected.",
            labels=["upstream"],
        )
        for upstream in self._balancer.upstreams:
            in_flight.add_metric([upstream.name], upstream.in_flight)
            usable.add_metric([upstream.name], float(self._balancer.is_usable(upstream)))
        affinity = CounterMetricFamily(
            "hearth_proxy_affinity",
            "Requests with a session or a prompt, kept by their replica or moved to another.",
            labels=["result"],
        )
        for result, count in self._balancer.affinity.copy().items():
            affinity.add_metric([result], count)
        return [in_flight, usable, affinity]
