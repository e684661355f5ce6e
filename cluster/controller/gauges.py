"""The controller's own metrics, read from its snapshot at each scrape. Any thread."""

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.controller.cycle import Cycle
from cluster.controller.loop import ControllerSnapshot
from cluster.replicas import Group

PREFIX = "hearth_cluster_"
GROUP = ["server", "accelerator", "user_rows"]
LATENCY = ["server", "latency"]  # ttft or itl
FIGURE = ["server", "figure"]  # arrivals_per_minute, ttft_ms or itl_ms


class ControllerGauges(Collector):
    def __init__(self, snapshot: Callable[[], ControllerSnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        now = self._snapshot()
        desired = _gauge("desired_replicas", "Replicas of the plan.", GROUP)
        for group, count in now.plan.items():
            desired.add_metric(_labels(group), float(count))
        current = _gauge("current_replicas", "Replicas that are there.", [*GROUP, "state"])
        for (group, state), count in Counter((r.group, r.state) for r in now.replicas).items():
            current.add_metric([*_labels(group), state], float(count))
        unplaced = _gauge("unplaced_replicas", "Replicas that found no machine.", GROUP)
        for group, outcome in now.unplaced.items():
            unplaced.add_metric(_labels(group), float(outcome.unplaced))
        starts = _gauge("start_seconds", "The longest of a server's last starts.", ["server"])
        for server, forecast in now.starts.items():
            if forecast.longest_s is not None:
                starts.add_metric([server], forecast.longest_s)
        yield from (desired, current, unplaced, starts)
        has_fault = bool(now.fault or (now.cycle and now.cycle.fault))
        yield _figure("fault", "1 if the last attempt to do anything failed.", has_fault)
        text = "Attempts that failed in a new way."
        yield CounterMetricFamily(f"{PREFIX}faults", text, value=now.num_faults)
        if now.cycle is not None:
            yield from _of_cycle(now.cycle)


def _of_cycle(cycle: Cycle) -> Iterable[Metric]:
    yield _figure("cycle", "Number of the last cycle.", cycle.number)
    yield _figure("cycle_seconds", "What the last cycle took.", cycle.seconds)
    if cycle.answer is not None:
        cost = cycle.answer.summary.total_cost
        yield _figure("cost_cents_per_hour", "Of the plan that was answered.", cost)
    arrivals = _gauge("arrivals_per_minute", "Requests that came.", ["server"])
    held = _gauge("held", "1 for a server that was left as it is.", ["server"])
    short = _gauge("short", "1 for a server with fewer replicas than its load needs.", ["server"])
    measured = _gauge("measured_seconds", "Mean latencies of the last period.", LATENCY)
    predicted = _gauge("predicted_seconds", "What the model said of the same.", LATENCY)
    error = _gauge("prediction_error_ratio", "Predicted by measured, less 1.", LATENCY)
    for name, each in cycle.servers.items():
        held.add_metric([name], float(bool(each.held)))
        short.add_metric([name], float(each.is_short))
        if each.arrived_per_minute is not None:
            arrivals.add_metric([name], each.arrived_per_minute)
        for kind, measured_ms, predicted_ms in (
            ("ttft", each.measured.ttft_ms, each.predicted.ttft_ms),
            ("itl", each.measured.itl_ms, each.predicted.itl_ms),
        ):
            if measured_ms is not None:
                measured.add_metric([name, kind], measured_ms / 1000)
            if predicted_ms is not None:
                predicted.add_metric([name, kind], predicted_ms / 1000)
            if measured_ms and predicted_ms is not None:
                error.add_metric([name, kind], predicted_ms / measured_ms - 1)
    yield from (arrivals, held, short, measured, predicted, error)
    yield from _of_forecasts(cycle)


def _of_forecasts(cycle: Cycle) -> Iterable[Metric]:
    judged = _gauge("forecasts_judged", "Forecasts with intervals, of the last 200.", FIGURE)
    kept = _gauge("forecasts_held_ratio", "Share of them whose interval held.", FIGURE)
    off = _gauge("forecast_error_ratio", "Median distance to what came, relative.", FIGURE)
    width = _gauge("forecast_half_width_ratio", "Median of half an interval, relative.", FIGURE)
    for name, each in cycle.servers.items():
        for figure, score in each.scores.items():
            judged.add_metric([name, figure], score.judged)
            kept.add_metric([name, figure], score.held / score.judged)
            off.add_metric([name, figure], score.error_ratio)
            width.add_metric([name, figure], score.half_width_ratio)
    yield from (judged, kept, off, width)


def _labels(group: Group) -> list[str]:
    return [group.server, group.accelerator, str(group.user_rows)]


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)


def _figure(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)
