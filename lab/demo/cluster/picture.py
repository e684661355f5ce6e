"""Draws a run as SVG: load, replicas with decisions, and latencies with their service levels."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.demo.cluster.verdict import Run

INCHES, DPI = (7.2, 8.0), 200
# Colours that people with colour blindness can tell apart (Okabe and Ito, 2008).
BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"

_Points = Iterable[tuple[float, float | None]]  # (seconds, milliseconds or None)


def draw(run: Run, path: Path) -> None:
    figure = Figure(figsize=INCHES, layout="constrained")
    panels = figure.subplots(4, 1, sharex=True)
    load, replicas, ttft, itl = panels
    at_s = [row.at_s for row in run.rows]
    load.step(at_s, [row.offered_per_s for row in run.rows], where="pre", color=BLUE)
    load.set(ylabel="requests / s", ylim=(0, None))
    _draw_replicas(replicas, run)
    _draw_latency(
        ttft,
        [(each.began_s, each.ttft_ms) for each in run.outcomes],
        [(row.at_s, row.predicted_ttft_ms) for row in run.rows],
        run.story.slo_ttft_ms,
    )
    ttft.set(ylabel="time to first token, ms")
    _draw_latency(
        itl,
        [(each.began_s, each.itl_ms) for each in run.outcomes],
        [(row.at_s, row.predicted_itl_ms) for row in run.rows],
        run.story.slo_itl_ms,
    )
    itl.set(xlabel="seconds", ylabel="inter-token latency, ms")
    if run.killed_s is not None:
        for axes in panels:
            axes.axvline(run.killed_s, color=VERMILION, linewidth=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", dpi=DPI, metadata={"Date": None})


def _draw_replicas(axes: Axes, run: Run) -> None:
    looked_s = [look.at_s for look in run.looks]
    planned, ready = [look.desired for look in run.looks], [look.ready for look in run.looks]
    axes.step(looked_s, planned, where="post", color=GREY, label="planned")
    axes.step(looked_s, ready, where="post", color=BLUE, label="ready")
    changed = [row for row in run.rows if row.has_changed]
    at_s, to = [row.at_s for row in changed], [row.desired for row in changed]
    axes.plot(at_s, to, "v", color=VERMILION, label="the plan changed")
    axes.set(ylabel="replicas", ylim=(0, None))
    axes.legend(loc="upper left")


def _draw_latency(axes: Axes, measured: _Points, predicted: _Points, level_ms: float) -> None:
    at_s, measured_ms = _known(measured)
    # Thousands of points are drawn as an image, or the SVG would be ten times as large.
    axes.plot(
        at_s, measured_ms, ".", color=BLUE, markersize=3, label="each request", rasterized=True
    )
    at_s, predicted_ms = _known(predicted)
    axes.plot(at_s, predicted_ms, color=GREEN, label="predicted mean")
    axes.axhline(level_ms, color=VERMILION, linestyle="--", label="service level")
    axes.set(ylim=(0, None))
    axes.legend(loc="upper left")


def _known(points: _Points) -> tuple[list[float], list[float]]:
    known = [(at_s, ms) for at_s, ms in points if ms is not None]
    return [at_s for at_s, _ in known], [ms for _, ms in known]
