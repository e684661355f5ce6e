"""Desired replicas as gauges, for HPA and KEDA. Any thread."""

from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from optimizer.state import State

NAMES = ("optimizer_desired_replicas", "inferno_desired_replicas")  # ours, and the reference's


class DesiredReplicas(Collector):
    """Read from the state at every scrape, so a removed server leaves no stale series."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state

    def collect(self) -> Iterable[GaugeMetricFamily]:
        state = self._state()
        for name in NAMES:
            family = GaugeMetricFamily(
                name,
                "Replicas that the last solve wants a server to have on an accelerator.",
                labels=["server", "accelerator"],
            )
            for server in state.system.servers.values():
                parts = server.desired_alloc.each_part()
                for part in parts:
                    family.add_metric([server.name, part.accelerator], part.num_replicas)
                if not parts and server.name in state.allocated:
                    # Scaled to zero: say so on the accelerator that is to be freed.
                    family.add_metric([server.name, server.current_alloc.accelerator], 0)
            yield family

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Names only, so that registering does not scrape."""
        return [GaugeMetricFamily(name, "", labels=["server", "accelerator"]) for name in NAMES]
