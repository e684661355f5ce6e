"""Draws the report's pictures as SVG elements of its page."""

import re
from io import StringIO
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("report.mplstyle")
PANEL_INCHES = (4.3, 3.2)
MARGINS_INCHES = (0.75, 0.15, 0.5, 0.3)  # left, right, below, above: for numbers, names and a title
SVG_DPI = 72  # matplotlib's resolution of SVG
# Colours that colour-blind people can tell apart (Okabe and Ito, 2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def panels(
    count: int, height: float = PANEL_INCHES[1], has_names: bool = False
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` axes side by side. With `has_names`, the labels beside them are
    words, and margins are adapted to these, which takes as long as drawing the figure."""
    with style.context(STYLE):
        figure = Figure(figsize=(PANEL_INCHES[0] * count, height))
        if has_names:
            figure.set_layout_engine("constrained")
        axes = figure.subplots(1, count, squeeze=False)[0]
    return figure, list(axes)


def to_svg(figure: Figure, name: str) -> str:
    """Returns the figure as an element of a page, where `name` makes its ids unique."""
    text = StringIO()
    with style.context(STYLE):
        figure.set_dpi(SVG_DPI)
        if engine := figure.get_layout_engine():
            engine.execute(figure)
            figure.set_layout_engine(None)  # with an engine, savefig would draw everything twice
        else:
            _leave_margins(figure)
        figure.savefig(text, format="svg", metadata={"Date": None})
    element = text.getvalue()[text.getvalue().index("<svg") :]
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", element)


def _leave_margins(figure: Figure) -> None:
    width, height = figure.get_size_inches()
    left, right, bottom, top = MARGINS_INCHES
    panel = width / len(figure.axes)
    figure.subplots_adjust(
        left / width, bottom / height, 1 - right / width, 1 - top / height,
        wspace=(left + right) / (panel - left - right),
    )  # fmt: skip
