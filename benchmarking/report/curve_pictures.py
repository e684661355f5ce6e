"""Draws pictures of latency and throughput by load. Each is None without data."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarking.analysis.curve import LoadPoint, Spread
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.intervals import Interval, over_repeats
from benchmarking.analysis.knee import knee
from benchmarking.analysis.latency import E2E, ITL, LATENCIES, TTFT, Metric
from benchmarking.records import Workload
from benchmarking.report.svg import COLORS, panels

CDF_POINTS = 200
CDF_LINES = 7  # one line for each color


@dataclass(frozen=True, slots=True)
class Step:
    """The repeats of one load."""

    points: tuple[LoadPoint, ...]

    @property
    def x(self) -> float:
        load = self.points[0].load
        return float(load.concurrency or load.qps or 0.0)

    def mean(self, name: str) -> float:
        return float(np.mean([getattr(point, name) for point in self.points]))

    def latency(self, metric: Metric) -> Interval | None:
        """Returns the estimate over repeats if there are any, else over blocks of the only row."""
        spreads = [spread for point in self.points if (spread := spread_of(point, metric))]
        if len(spreads) > 1:
            return over_repeats([spread.mean.value for spread in spreads])
        return spreads[0].mean if spreads else None

    def percentile(self, metric: Metric, percent: int) -> float:
        spreads = [spread for point in self.points if (spread := spread_of(point, metric))]
        return float(np.mean([s.percentile(percent) for s in spreads])) if spreads else np.nan


@dataclass(frozen=True, slots=True)
class Series:
    """One shape of requests under growing load, either in closed or in open loops."""

    label: str
    is_open: bool
    steps: tuple[Step, ...]


def series_of(points: Sequence[LoadPoint]) -> list[Series]:
    steps: dict[tuple[str, bool], dict[float, list[LoadPoint]]] = defaultdict(dict)
    for point in points:
        load = point.load
        kind = "open" if load.qps is not None else "closed"
        label = f"{load.model}, {load.input_tokens} in, {load.output_tokens} out, {kind} loop"
        by_load = steps[label, load.qps is not None]
        by_load.setdefault(float(load.concurrency or load.qps or 0.0), []).append(point)
    return [
        Series(label, is_open, tuple(Step(tuple(by_load[x])) for x in sorted(by_load)))
        for (label, is_open), by_load in steps.items()
    ]


def spread_of(point: LoadPoint, metric: Metric) -> Spread | None:
    return {TTFT.name: point.ttft, ITL.name: point.itl, E2E.name: point.e2e}[metric.name]


def throughput_latency(points: Sequence[LoadPoint], slo: Slo) -> Figure | None:
    """Draws mean latencies over output tokens/s, with 95 % intervals, the knee and the SLO."""
    series = series_of(points)
    if not any(point.e2e for point in points):
        return None
    figure, axes = panels(len(LATENCIES))
    for metric, ax in zip(LATENCIES, axes, strict=True):
        for each, color in zip(series, _colors(len(series)), strict=True):
            _throughput_curve(ax, each, metric, color)
        if (bound_ms := slo.bounds_ms.get(metric)) is not None:
            ax.axhline(bound_ms, color="#b00020", linestyle="--", linewidth=1, label="SLO")
        ax.set(xlabel="output tokens/s", ylabel=f"mean {metric.name}, ms")
        ax.set_ylim(bottom=0)
    axes[0].plot([], [], "o", markersize=10, fillstyle="none", color="#777777", label="knee")
    axes[0].legend(loc="upper left", fontsize=7)
    return figure


def _throughput_curve(ax: Axes, series: Series, metric: Metric, color: str) -> None:
    shown = [(step, found) for step in series.steps if (found := step.latency(metric))]
    x = [step.mean("tokens_per_s") for step, _ in shown]
    y = [found.value for _, found in shown]
    bounds = [(found.value - found.low, found.high - found.value) for _, found in shown]
    bars = np.nan_to_num(np.array(bounds).T, posinf=0.0)
    ax.errorbar(
        x, y, yerr=bars, marker="o", markersize=3, capsize=2, color=color, label=series.label
    )
    if bent := knee([step.points[0] for step, _ in shown]):
        at = next(i for i, (step, _) in enumerate(shown) if step.points[0] is bent)
        ax.plot(x[at], y[at], "o", markersize=10, fillstyle="none", color=color)


def percentile_bands(points: Sequence[LoadPoint]) -> Figure | None:
    """Draws TTFT and ITL over the load of the longest series, with percentiles."""
    series = max(series_of(points), key=lambda one: len(one.steps), default=None)
    if series is None or len(series.steps) < 2:
        return None
    figure, axes = panels(2)
    x = [step.x for step in series.steps]
    axis = "offered requests/s" if series.is_open else "concurrent requests"
    for metric, ax in zip((TTFT, ITL), axes, strict=True):
        at = {
            p: [step.percentile(metric, p) for step in series.steps]
            for p in (5, 25, 50, 75, 95, 99)
        }
        ax.fill_between(x, at[5], at[95], color=COLORS[0], alpha=0.15, label="p5 to p95")
        ax.fill_between(x, at[25], at[75], color=COLORS[0], alpha=0.3, label="p25 to p75")
        ax.plot(x, at[50], color=COLORS[0], marker="o", markersize=3, label="p50")
        ax.plot(x, at[99], color=COLORS[1], linestyle="--", label="p99")
        ax.set(xlabel=axis, ylabel=f"{metric.name}, ms", title=series.label)
        ax.set_ylim(bottom=0)
        ax.legend(loc="upper left", fontsize=7)
    return figure


def goodput_over_load(points: Sequence[LoadPoint], slo: Slo) -> Figure | None:
    """Draws goodput over the offered rate of open loops; a server that keeps up is the diagonal."""
    series = [each for each in series_of(points) if each.is_open]
    if not series:
        return None
    figure, (ax,) = panels(1)
    for each, color in zip(series, _colors(len(series)), strict=True):
        offered = [step.mean("offered_per_s") for step in each.steps]
        good = [
            float(np.mean([point.goodput(slo).requests_per_s for point in step.points]))
            for step in each.steps
        ]
        ax.plot(offered, good, marker="o", markersize=3, color=color, label=each.label)
        ax.plot([0, max(offered)], [0, max(offered)], color="#999999", linestyle=":", linewidth=1)
    ax.set(xlabel="offered requests/s", ylabel="good requests/s", title=str(slo))
    ax.legend(loc="upper left", fontsize=7)
    return figure


def latency_cdf(points: Sequence[LoadPoint]) -> Figure | None:
    """Draws the share of requests that were answered within a time, for up to CDF_LINES rows that
    are spread evenly from the lightest load to the heaviest."""
    answered = [
        (point, label)
        for point, label in zip(points, load_labels(points), strict=True)
        if point.e2e is not None
    ]
    if not answered:
        return None
    answered.sort(key=lambda row: row[0].in_flight)
    chosen = np.linspace(0, len(answered) - 1, min(len(answered), CDF_LINES)).round().astype(int)
    figure, axes = panels(len(LATENCIES), height=3.8, has_names=True)
    shares = np.linspace(0, 100, CDF_POINTS)
    for index, color in zip(chosen, _colors(len(chosen)), strict=True):
        point, label = answered[index]
        for metric, ax in zip(LATENCIES, axes, strict=True):
            if values := metric.values(point.measured):
                ax.plot(np.percentile(values, shares), shares, color=color, label=label)
    for metric, ax in zip(LATENCIES, axes, strict=True):
        ax.set(xlabel=f"{metric.name}, ms", ylabel="% of requests within")
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7)
    return figure


def load_labels(points: Sequence[LoadPoint]) -> list[str]:
    """Returns the labels of rows by their load. Rows of the same load are numbered."""
    names = [_load_name(point.load) for point in points]
    counts, used = Counter(names), Counter[str]()
    labels = []
    for name in names:
        used[name] += 1
        number = f", {used[name]} of {counts[name]}"
        labels.append(name + number if counts[name] > 1 else name)
    return labels


def _load_name(load: Workload) -> str:
    parts = [load.model, f"{load.input_tokens} in", f"{load.output_tokens} out"]
    if load.image_size != "na":
        parts.append(f"{load.image_size} image")
    if load.qps is None:
        parts.append(f"{load.concurrency} users")
    else:
        spaced = "" if load.qps_distribution == "constant" else f" {load.qps_distribution}"
        parts.append(f"{load.qps:.3g}/s{spaced}")
    return ", ".join(parts)


def _colors(count: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(count)]
