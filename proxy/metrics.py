"""The proxy's Prometheus metrics: every name is declared here.

Recorded by the event loop; what is so now is read when somebody asks.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.audit import AuditRecord
from proxy.upstreams import Balancer

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
NO_TEAM = "-"  # refused before anybody was known


class Metrics:
    """Any thread. Each app has a registry of its own."""

    def __init__(
        self,
        balancer: Balancer,
        num_running: Callable[[], int],
        num_connections: Callable[[], int],
        num_waiting: Callable[[], int],
    ) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "hearth_proxy_requests",
            "Requests by team, status sent to the client and outcome.",
            ["team_id", "status", "outcome"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "hearth_proxy_tokens",
            "Tokens of finished answers.",
            ["team_id", "kind"],
            registry=self.registry,
        )
        relayed = Counter(
            "hearth_proxy_bytes", "Body bytes relayed.", ["direction"], registry=self.registry
        )
        self._bytes_in, self._bytes_out = relayed.labels("in"), relayed.labels("out")
        self._head_seconds = self._histogram("head", "From the request to the upstream's head.")
        self._ttft_seconds = self._histogram("ttft", "From the request to the first body byte.")
        self._total_seconds = self._histogram("request", "From the request to the last byte.")
        Gauge(
            "hearth_proxy_in_flight", "Requests being served now.", registry=self.registry
        ).set_function(num_running)
        Gauge(
            "hearth_proxy_connections", "Open connections of clients.", registry=self.registry
        ).set_function(num_connections)
        Gauge(
            "hearth_proxy_waiting", "Requests that wait for a user row.", registry=self.registry
        ).set_function(num_waiting)
        self.registry.register(UpstreamCollector(balancer))

    def record(self, record: AuditRecord) -> None:
        team_id = record.team_id or NO_TEAM
        self._requests.labels(team_id, str(record.status), record.outcome.value).inc()
        self._bytes_in.inc(record.bytes_in)
        self._bytes_out.inc(record.bytes_out)
        if record.prompt_tokens is not None:
            self._tokens.labels(team_id, "prompt").inc(record.prompt_tokens)
        if record.completion_tokens is not None:
            self._tokens.labels(team_id, "completion").inc(record.completion_tokens)
        if record.queue_ms is not None:
            self._head_seconds.observe(record.queue_ms / 1000)
        if record.ttft_ms is not None:
            self._ttft_seconds.observe(record.ttft_ms / 1000)
        self._total_seconds.observe(record.total_ms / 1000)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"hearth_proxy_{name}_seconds", text, buckets=LATENCY_BUCKETS_S, registry=self.registry
        )


class UpstreamCollector(Collector):
    """Load and health of each upstream at the time of asking."""

    def __init__(self, balancer: Balancer) -> None:
        self._balancer = balancer

    def collect(self) -> Iterable[Metric]:
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
        return [in_flight, usable]
