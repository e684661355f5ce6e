"""Draws pictures of single requests and of the run over time. Each is None without data."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.in_flight import InFlight, admitted_s
from benchmarking.analysis.latency import output_tokens, succeeded
from benchmarking.records import RequestRecord, Run
from benchmarking.report.svg import COLORS, panels

GANTT_REQUESTS = 80
TIME_SLICES = 200
MAX_DOTS = 3000
MAX_TICKS = 12

_Figure = Callable[[RequestRecord], float | None]


def gantt(point: LoadPoint | None, places: int | None) -> Figure | None:
    """Draws the phases of a row's first requests: not yet sent, queue, prefill and decode.

    The server may report how long a request waited. If not, the wait is inferred from its `places`,
    first come, first served. If these are not known either, all the time counts as prefill.
    """
    if point is None:
        return None
    records = sorted(point.measured, key=lambda record: record.sent_s)[:GANTT_REQUESTS]
    starts_s = admitted_s(records, places or len(records))
    figure, (ax,) = panels(1, height=1.0 + 0.07 * len(records))
    figure.set_figwidth(9)
    times_s = [_gantt_times_s(*each) for each in zip(records, starts_s, strict=True)]
    x = np.array(times_s).T - point.from_s
    lower, upper = np.arange(len(records)) - 0.4, np.arange(len(records)) + 0.4
    for begin, end, (name, color) in zip(x, x[1:], _GANTT_COLORS.items(), strict=False):
        corners = [(begin, lower), (begin, upper), (end, upper), (end, lower)]
        bars = [*np.array(corners).transpose(2, 0, 1)]
        ax.add_collection(PolyCollection(bars, color=color, label=name))
    ax.autoscale_view()
    failed = [y for y, record in enumerate(records) if record.failure is not None]
    ax.plot([records[y].end_s - point.from_s for y in failed], failed, "x", color="#b00020")
    ax.set(xlabel="s since the row began", ylabel="request")
    ax.invert_yaxis()
    ax.legend(loc="lower left", fontsize=7, ncols=4)
    return figure


def _gantt_times_s(record: RequestRecord, admitted_s: float) -> tuple[float, ...]:
    """Returns when a request was due, and the ends of its phases, in seconds on the run's clock."""
    came_s = record.chunk_s or (record.end_s,)
    return record.scheduled_s, record.sent_s, min(admitted_s, came_s[0]), came_s[0], came_s[-1]


_GANTT_COLORS = {
    "not yet sent": "#999999",
    "queue": COLORS[4],
    "prefill": COLORS[0],
    "decode": COLORS[2],
}


def time_series(run: Run) -> Figure | None:
    """Draws the whole run: requests in flight, output tokens/s and times to first token."""
    answered = succeeded(run.records)
    if not answered:
        return None
    figure, axes = panels(3)
    from_s = min(record.sent_s for record in run.records)
    to_s = max(record.end_s for record in run.records)
    bounds_s = np.linspace(from_s, to_s, TIME_SLICES + 1)
    middle_s = (bounds_s[1:] + bounds_s[:-1]) / 2 - from_s
    in_flight = InFlight(run.records)
    ran = {record.row for record in run.records}
    axes[0].step(bounds_s - from_s, in_flight.at(bounds_s), color=COLORS[0], where="post")
    tokens = np.zeros(TIME_SLICES)
    for record in answered:
        share = output_tokens(record) / len(record.chunk_s)
        tokens += share * np.histogram(record.chunk_s, bounds_s)[0]
    axes[1].plot(middle_s, tokens / np.diff(bounds_s), color=COLORS[2])
    shown = answered[:: -(-len(answered) // MAX_DOTS)]
    due_s = [record.scheduled_s - from_s for record in shown]
    ttfts_ms = [1000 * (record.chunk_s[0] - record.scheduled_s) for record in shown]
    axes[2].plot(due_s, ttfts_ms, ".", markersize=2, color=COLORS[1])
    for ax, label in zip(axes, ("in flight", "output tokens/s", "TTFT, ms"), strict=True):
        ax.set(xlabel="s", ylabel=label)
        ax.set_ylim(bottom=0)
        for number, row in enumerate(run.rows):
            if number in ran:
                ax.axvline(row.start_s - from_s, color="#bbbbbb", linewidth=0.6)
    return figure


def batch_bars(records: Sequence[RequestRecord]) -> Figure | None:
    """Draws medians with p5 to p95 by the server's batch size, for client and server."""
    by_batch: dict[int, list[RequestRecord]] = defaultdict(list)
    for record in succeeded(records):
        if batch := record.server.batch_size_used:
            by_batch[batch].append(record)
    if not by_batch:
        return None
    figure, axes = panels(4)
    sizes = sorted(by_batch)
    for ax, (label, client, server) in zip(axes, _BARS, strict=False):
        for offset, value_of, color, source in (
            (-0.2, client, COLORS[0], "client"),
            (0.2, server, COLORS[4], "server"),
        ):
            groups = [[value_of(record) for record in by_batch[size]] for size in sizes]
            _bars(ax, groups, offset, color, source)
        ax.set(xlabel="batch size", ylabel=label)
    total = [
        size * float(np.mean(_not_none([_client_rate(r) for r in by_batch[size]]) or [0]))
        for size in sizes
    ]
    axes[3].bar(range(len(sizes)), total, color=COLORS[2])
    axes[3].set(xlabel="batch size", ylabel="output tokens/s of the whole batch")
    step = -(-len(sizes) // MAX_TICKS)
    for ax in axes:
        ax.set_xticks(range(0, len(sizes), step), [str(size) for size in sizes[::step]])
    axes[0].legend(loc="upper right", fontsize=7)
    return figure


def _bars(
    ax: Axes, groups: Sequence[Sequence[float | None]], offset: float, color: str, source: str
) -> None:
    for i, values in enumerate(_not_none(group) for group in groups):
        if values:
            low, middle, high = np.percentile(values, (5, 50, 95))
            label = source if i == 0 else None
            error = [[middle - low], [high - middle]]
            ax.bar(i + offset, middle, 0.38, yerr=error, capsize=2, color=color, label=label)


def _not_none(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _client_rate(record: RequestRecord) -> float | None:
    decode_s = record.chunk_s[-1] - record.chunk_s[0]
    return (output_tokens(record) - 1) / decode_s if decode_s > 0 else None


def _server(name: str, scale: float) -> _Figure:
    def figure(record: RequestRecord) -> float | None:
        value = getattr(record.server, name)
        return None if value is None else float(value) * scale

    return figure


# Client and server both count from sending here, so that they measure the same.
_BARS: Sequence[tuple[str, _Figure, _Figure]] = (
    ("TTFT, ms", lambda r: 1000 * (r.chunk_s[0] - r.sent_s), _server("ttft_s", 1000)),
    (
        "end-to-end, ms",
        lambda r: 1000 * (r.chunk_s[-1] - r.sent_s),
        _server("end_to_end_latency_s", 1000),
    ),
    ("output tokens/s per request", _client_rate, _server("output_tokens_per_s", 1)),
)
