"""A search as a picture: every measurement, the best so far, and for three nodes where they lie.

Pure but for a lock: matplotlib's caches of fonts and text are not made for threads.
"""

import threading
from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate
from math import sqrt

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from weights.schema import PlotFormat
from weights.search import Observation, Shares
from weights.service import Overview

INK, BLUE, ORANGE = "#444444", "#3b6fb6", "#d9772b"
TERNARY_NODES = 3
CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.5, sqrt(3) / 2))

_lock = threading.Lock()


def draw(overview: Overview, observations: Sequence[Observation], plot_format: PlotFormat) -> bytes:
    """Draws the last observations, at least one, in the order in which they were told."""
    has_ternary = overview.session.problem.number_of_nodes == TERNARY_NODES
    figure = Figure(figsize=(11, 4.2) if has_ternary else (7, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if has_ternary else 1, squeeze=False)[0]
    _draw_trials(axes[0], overview, observations)
    if has_ternary:
        _draw_ternary(figure, axes[1], overview, observations)
    picture = BytesIO()
    with _lock:
        figure.savefig(picture, format=plot_format, dpi=120)
    return picture.getvalue()


def _draw_trials(axes: Axes, overview: Overview, observations: Sequence[Observation]) -> None:
    session, best = overview.session, overview.assessment.best
    metrics = [observation.metric for observation in observations]
    first = session.num_observations - len(metrics) + 1
    trials = range(first, first + len(metrics))
    better = max if session.problem.direction == "maximize" else min
    axes.plot(trials, metrics, "o", color=BLUE, markersize=4, alpha=0.6, label="measured")
    axes.step(trials, list(accumulate(metrics, better)), where="post", color=INK, label="best")
    axes.axhline(best.metric, color=ORANGE, linestyle="--", label="best, noise accounted for")
    axes.set_xlabel("trial")
    axes.set_ylabel(f"performance metric ({session.problem.direction})")
    axes.spines[["top", "right"]].set_visible(False)
    # Above the data: a search for the emptiest corner takes seconds on a busy machine.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)


def _draw_ternary(
    figure: Figure, axes: Axes, overview: Overview, observations: Sequence[Observation]
) -> None:
    """Draws a triangle in which each corner is all of the model on one node."""
    corners = [*CORNERS, CORNERS[0]]
    axes.plot([x for x, _ in corners], [y for _, y in corners], color=INK, linewidth=1)
    for node, (x, y) in enumerate(CORNERS):
        axes.annotate(f"node {node}", (x, y), xytext=(0, 8 if y else -14),
                      textcoords="offset points", ha="center")  # fmt: skip
    points = [_in_triangle(observation.shares) for observation in observations]
    dots = axes.scatter(
        [x for x, _ in points], [y for _, y in points], s=24, cmap="viridis",
        c=[observation.metric for observation in observations],
    )  # fmt: skip
    axes.plot(*_in_triangle(overview.assessment.best.shares), "*", color=ORANGE, markersize=16)
    figure.colorbar(dots, ax=axes, label="performance metric")
    axes.set_aspect("equal")
    axes.axis("off")


def _in_triangle(shares: Shares) -> tuple[float, float]:
    x = sum(share * corner[0] for share, corner in zip(shares, CORNERS, strict=True))
    y = sum(share * corner[1] for share, corner in zip(shares, CORNERS, strict=True))
    return x, y
