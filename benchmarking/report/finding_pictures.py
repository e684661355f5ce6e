"""Draws pictures of findings: the fit, a comparison, switching times and acceptance of drafts."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarking.analysis.compare import RowChange, Verdict
from benchmarking.analysis.fit import Fit, Line
from benchmarking.analysis.intervals import over_repeats
from benchmarking.analysis.latency import succeeded
from benchmarking.analysis.switching import Matrix
from benchmarking.records import Run
from benchmarking.report.svg import COLORS, panels

_VERDICT_COLORS = {Verdict.BETTER: COLORS[2], Verdict.WORSE: COLORS[1], Verdict.SAME: "#777777"}


def fit_residuals(fit: Fit) -> Figure:
    """Draws both lines over their points, and the residuals in percent."""
    figure, axes = panels(4)
    for line, axis_names, (over, left) in (
        (fit.decode, ("requests in service", "ITL, ms"), axes[:2]),
        (fit.prefill, ("prompt tokens × requests in service", "prefill, ms"), axes[2:]),
    ):
        _line(over, line, *axis_names)
        left.axhline(0, color="#999999", linewidth=1)
        left.plot(line.x, [100 * value for value in line.residuals], ".", color=COLORS[1])
        left.set(xlabel=axis_names[0], ylabel="(fitted − measured) / measured, %")
    return figure


def _line(ax: Axes, line: Line, x_name: str, y_name: str) -> None:
    ax.plot(line.x, line.y, ".", color=COLORS[0], alpha=0.6)
    ends = [min(line.x), max(line.x)]
    ax.plot(ends, [line.at(x) for x in ends], color=COLORS[6])
    ax.set(xlabel=x_name, ylabel=y_name, title=f"R² = {line.r_squared:.3f}")


def comparison(changes: Sequence[RowChange]) -> Figure | None:
    """Draws the change of each measure with its interval; 0 means no change."""
    if not changes:
        return None
    figure, (ax,) = panels(1, height=0.8 + 0.22 * len(changes), has_names=True)
    figure.set_figwidth(8)
    for y, change in enumerate(changes):
        percent = 100 * np.array([change.relative.low, change.relative.value, change.relative.high])
        color = _VERDICT_COLORS[change.verdict]
        if np.isfinite(percent).all():
            ax.plot(percent[[0, 2]], [y, y], color=color)
        ax.plot(percent[1], y, "o", markersize=4, color=color)
    ax.axvline(0, color="#999999", linewidth=1)
    ax.set_yticks(range(len(changes)), [_change_label(change) for change in changes], fontsize=7)
    ax.invert_yaxis()
    ax.set(xlabel="change, % (95 % interval)")
    return figure


def _change_label(change: RowChange) -> str:
    load = change.load
    amount = f"{load.concurrency} users" if load.qps is None else f"{load.qps:.3g}/s"
    return f"{load.model} {load.input_tokens}/{load.output_tokens} {amount}: {change.measure}"


def switching_times(matrix: Matrix) -> Figure | None:
    """Draws switching times from one model (down) to another (across), reported and estimated."""
    if not matrix:
        return None
    models = sorted({model for pair in matrix for model in pair})
    figure, axes = panels(2, has_names=True)
    by_server = {pair: switches.by_server_s for pair, switches in matrix.items()}
    by_estimate = {pair: switches.by_estimate_s for pair, switches in matrix.items()}
    _heat_map(axes[0], models, by_server, "by the server's word")
    _heat_map(axes[1], models, by_estimate, "by the 3-sigma estimate")
    return figure


def _heat_map(
    ax: Axes, models: Sequence[str], times_s: Mapping[tuple[str, str], list[float]], who: str
) -> None:
    cells = np.full((len(models), len(models)), np.nan)
    for (x, y), values in times_s.items():
        if values:
            row, column, found = models.index(x), models.index(y), over_repeats(values)
            cells[row, column] = found.value
            half = found.high - found.value
            spread = f"\n±{half:.2g}" if np.isfinite(half) else ""
            ax.text(column, row, f"{found.value:.3g}{spread}", ha="center", va="center")
    edges = np.arange(len(models) + 1) - 0.5
    ax.pcolormesh(edges, edges, cells, cmap="Blues", vmin=0, alpha=0.6)
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.set_xticks(range(len(models)), models, rotation=30)
    ax.set_yticks(range(len(models)), models)
    ax.set(xlabel="to", ylabel="from", title=f"switching time, s, {who}")


def acceptance(run: Run) -> Figure | None:
    """Draws the accepted share of drafts, and the tokens per step, of each row that has any."""
    names = ("acceptance_rate", "tokens_per_step")
    figures_by_row = {name: rows for name in names if (rows := _by_row(run, name))}
    if not figures_by_row:
        return None
    figure, axes = panels(len(figures_by_row), has_names=True)
    for ax, (name, rows) in zip(axes, figures_by_row.items(), strict=True):
        ax.boxplot(list(rows.values()), whis=(5, 95), showfliers=False)
        ax.set_xticks(range(1, len(rows) + 1), list(rows), rotation=30)
        ax.set(ylabel=name.replace("_", " "))
        ax.set_ylim(0, 1 if name == "acceptance_rate" else None)
    return figure


def _by_row(run: Run, name: str) -> Mapping[str, Sequence[float]]:
    """Returns a figure of ServerUsage for completed requests that have it, by row."""
    values = {
        f"{row_record.load.model}, row {row}": [
            value
            for record in succeeded(run.records_of(row))
            if (value := getattr(record.server, name)) is not None
        ]
        for row, row_record in enumerate(run.rows)
    }
    return {row: of_row for row, of_row in values.items() if of_row}
