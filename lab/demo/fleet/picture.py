"""Draws a day as SVG: for each server its load, its replicas, and the time to the first token."""

from pathlib import Path

from matplotlib.figure import Figure

from lab.demo.cluster.picture import BLUE, DPI, GREEN, GREY, INCHES, VERMILION
from lab.demo.fleet.play import Day
from lab.demo.fleet.verdict import LEVEL_TTFT_MS

COLOURS = (BLUE, VERMILION, GREEN)


def draw(day: Day, path: Path) -> None:
    figure = Figure(figsize=INCHES, layout="constrained")
    load, replicas, ttft = figure.subplots(3, 1, sharex=True)
    at_s = [look.at_s for look in day.looks]
    for member, colour in zip(day.members, COLOURS, strict=False):
        line = {"color": colour, "label": member.title}
        load.plot(at_s, [member.rate_at(at, day.day_s) for at in at_s], **line)
        replicas.step(at_s, [each.ready[member.name] for each in day.looks], where="post", **line)
        seen = [(each.began_s, each.ttft_ms) for each in day.outcomes[member.name] if each.ttft_ms]
        ttft.plot(*zip(*seen, strict=True), ".", markersize=3, rasterized=True, **line)
    total = [sum(each.ready.values()) for each in day.looks]
    replicas.step(at_s, total, where="post", color=GREY, linestyle=":", label="all")
    ttft.axhline(LEVEL_TTFT_MS, color=GREY, linestyle="--", label="service level")
    load.set(ylabel="requests / s", ylim=(0, None))
    replicas.set(ylabel="ready replicas", ylim=(0, None))
    ttft.set(xlabel="seconds", ylabel="time to first token, ms", yscale="log")
    for axes in (load, replicas, ttft):
        axes.legend(loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", dpi=DPI, metadata={"Date": None})
