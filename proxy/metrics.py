"""The proxy's Prometheus metrics: every name is declared here.

Counted in plain numbers by the event loop, as each request is, and put into Prometheus' terms when
somebody asks: the library's own counters and histograms take 9 us a request (by hand).
"""

from bisect import bisect_left
from collections import Counter
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
NO_TEAM = "-"  # refused before anybody was known

Gauges = dict[str, tuple[str, Callable[[], int]]]  # name: (meaning, reader of its value)


class Durations:
    """Counts by bucket. Written by the event loop, read by any thread."""

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
        self._requests: Counter[tuple[str, int, str]] = Counter()  # team, status, outcome
        self._servers: Counter[tuple[str, int]] = Counter()  # server, status
        self._tokens: Counter[tuple[str, str]] = Counter()  # team, kind
        self._costs: dict[tuple[str, str], float] = {}  # team, currency
        self._replica_cents: dict[str, float] = {}  # keys: teams
        self._bytes: Counter[str] = Counter()
        self._head, self._ttft, self._total = Durations(), Durations(), Durations()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def record(self, record: AuditRecord) -> None:
        team_id = record.team_id or NO_TEAM
        self._requests[team_id, record.status, record.outcome] += 1
        if record.server is not None:
            self._servers[record.server, record.status] += 1
        self._bytes["in"] += record.bytes_in
        self._bytes["out"] += record.bytes_out
        if record.prompt_tokens is not None:
            self._tokens[team_id, "prompt"] += record.prompt_tokens
        if record.completion_tokens is not None:
            self._tokens[team_id, "completion"] += record.completion_tokens
        if record.cached_tokens is not None:
            self._tokens[team_id, "cached"] += record.cached_tokens
        if record.cost is not None and record.currency is not None:
            key = team_id, record.currency
            self._costs[key] = self._costs.get(key, 0.0) + record.cost
        if record.replica_cents is not None:
            cents = self._replica_cents.get(team_id, 0.0)
            self._replica_cents[team_id] = cents + record.replica_cents
        if record.queue_ms is not None:
            self._head.observe(record.queue_ms)
        if record.ttft_ms is not None:
            self._ttft.observe(record.ttft_ms)
        self._total.observe(record.total_ms)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "hearth_proxy_requests",
            "Requests by team, status sent to the client and outcome.",
            labels=["team_id", "status", "outcome"],
        )
        for (team_id, status, outcome), count in self._requests.copy().items():
            requests.add_metric([team_id, str(status), str(outcome)], count)
        servers = CounterMetricFamily(
            "hearth_proxy_server_requests",
            "Requests answered by a server with a name, by status.",
            labels=["server", "status"],
        )
        for (server, status), count in self._servers.copy().items():
            servers.add_metric([server, str(status)], count)
        tokens = CounterMetricFamily(
            "hearth_proxy_tokens", "Tokens of finished answers.", labels=["team_id", "kind"]
        )
        for labels, count in self._tokens.copy().items():
            tokens.add_metric(labels, count)
        costs = CounterMetricFamily(
            "hearth_proxy_cost", "Cost of finished answers.", labels=["team_id", "currency"]
        )
        for labels, cost in self._costs.copy().items():
            costs.add_metric(labels, cost)
        replicas = CounterMetricFamily(
            "hearth_proxy_replica_cents",
            "What servers with a price cost, shared among their requests.",
            labels=["team_id"],
        )
        for team_id, cents in self._replica_cents.copy().items():
            replicas.add_metric([team_id], cents)
        relayed = CounterMetricFamily(
            "hearth_proxy_bytes", "Body bytes relayed.", labels=["direction"]
        )
        for direction, count in self._bytes.copy().items():
            relayed.add_metric([direction], count)
        yield from (requests, servers, tokens, costs, replicas, relayed)
        name, text = "hearth_proxy_{}_seconds", "From the request to the "
        yield self._head.family(name.format("head"), text + "upstream's head.")
        yield self._ttft.family(name.format("ttft"), text + "first body byte.")
        yield self._total.family(name.format("request"), text + "last byte.")
        for gauge, (meaning, value) in self._gauges.items():
            yield GaugeMetricFamily(gauge, meaning, value=value())
        yield from self._upstreams()

    def _upstreams(self) -> Iterable[Metric]:
        """Load and health of each upstream at the time of asking."""
        in_flight = GaugeMetricFamily(
            "hearth_proxy_upstream_in_flight", "Requests at the upstream.", labels=["upstream"]
        )
        usable = GaugeMetricFamily(
            "hearth_proxy_upstream_usable",
            "1 if it passes its checks and is not ejected.",
            labels=["upstream"],
        )
        for status in self._balancer.snapshot():
            in_flight.add_metric([status.name], status.in_flight)
            usable.add_metric([status.name], float(status.is_usable))
        affinity = CounterMetricFamily(
            "hearth_proxy_affinity",
            "Requests with a session or a prompt, kept by their replica or moved to another.",
            labels=["result"],
        )
        for result, count in self._balancer.affinity_counts().items():
            affinity.add_metric([result], count)
        return [in_flight, usable, affinity]
