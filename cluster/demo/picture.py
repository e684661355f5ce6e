"""Draws a run as SVG: load, replicas, and the time to the first token."""

from pathlib import Path

from matplotlib.figure import Figure

from cluster.demo.verdict import Run

INCHES = (7.2, 6.4)
# Told apart by people who do not see red or green as others do (Okabe and Ito, 2008).
BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"


def draw(run: Run, path: Path) -> None:
    story, rows = run.story, run.rows
    figure = Figure(figsize=INCHES, layout="constrained")
    load, replicas, ttft = figure.subplots(3, 1, sharex=True)
    at_s = [row.at_s for row in rows]
    load.step(at_s, [row.offered_per_s for row in rows], where="pre", color=BLUE)
    load.set(ylabel="requests / s", ylim=(0, None))
    looked_s = [look.at_s for look in run.looks]
    replicas.step(
        looked_s, [look.desired for look in run.looks], where="post", color=GREY, label="planned"
    )
    replicas.step(
        looked_s, [look.ready for look in run.looks], where="post", color=BLUE, label="ready"
    )
    replicas.set(ylabel="replicas", ylim=(0, None))
    replicas.legend(loc="upper left")
    whole = [each for each in run.asked if each.ttft_ms is not None]
    ttft.plot(
        [each.began_s for each in whole],
        [each.ttft_ms for each in whole],
        ".",
        color=BLUE,
        markersize=3,
        label="each request",
    )
    predicted = [(row.at_s, row.predicted_ttft_ms) for row in rows if row.predicted_ttft_ms]
    ttft.plot(
        [each[0] for each in predicted],
        [each[1] for each in predicted],
        color=GREEN,
        label="predicted mean",
    )
    ttft.axhline(story.slo_ttft_ms, color=VERMILION, linestyle="--", label="service level")
    ttft.set(xlabel="seconds", ylabel="time to first token, ms", ylim=(0, None))
    ttft.legend(loc="upper left")
    if run.killed_s is not None:
        for axes in (load, replicas, ttft):
            axes.axvline(run.killed_s, color=VERMILION, linewidth=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
