"""Keeps the results of `bench-peers` as lines of JSON, and shows them as a table and a chart."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from lab.kit.servers import ROOT

RESULTS = ROOT / "var" / "bench" / "peers.jsonl"
HEADINGS = ("model", "load", "contestant", "tokens/s, median (least to most)", "ours ÷ it")
HEAD = f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|"

ROW_HEIGHT, CELL_GAP = 16, 14
LABEL_WIDTH, BAR_WIDTH, VALUE_WIDTH = 250, 420, 90
OURS_COLOUR, PEER_COLOUR = "#2f6f4f", "#9aa5b1"


@dataclass(frozen=True, slots=True)
class Cell:
    """A model, its quantisation and a load. Contestants are compared within a cell."""

    model: str
    quantization: str
    load: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """A contestant's tokens/s in each turn. `rates` is empty if it did not run; `about` then says
    why."""

    name: str
    about: str
    rates: list[float]

    def __str__(self) -> str:
        if not self.rates:
            return f"did not run: {self.about.replace('|', '¦')}"
        return f"{median(self.rates):.1f} ({min(self.rates):.1f} to {max(self.rates):.1f})"


def rows(cell: Cell, measured: Sequence[Measurement]) -> list[str]:
    """Returns the cell's lines of a table below `HEAD`."""
    ours, lines = measured[0], []
    for each in measured:
        ratio = "" if each is ours else _ratio(ours, each)
        columns = [f"{cell.model} {cell.quantization}", cell.load, each.name, str(each), ratio]
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def keep(cell: Cell, machine: str, measured: Sequence[Measurement]) -> str:
    """Adds a cell to the results, in place of older ones of it. Returns its part of the table."""
    results = [entry for entry in _results() if entry["cell"] != asdict(cell)]
    entry = {
        "cell": asdict(cell),
        "machine": machine,
        "measurements": [asdict(each) for each in measured],
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text("".join(f"{json.dumps(each)}\n" for each in [*results, entry]))
    return "\n".join(rows(cell, measured))


def table() -> str:
    """Returns all results as Markdown, with the machines they were measured on."""
    entries = _results()
    machines = sorted({entry["machine"] for entry in entries})
    peers = {
        each["name"].partition(" ")[0]: each["about"]
        for entry in entries
        for each in entry["measurements"]
        if each["rates"] and not each["name"].startswith("hearth")
    }
    about = [f"{name}: {text}" for name, text in sorted(peers.items())]
    lines = [row for each in entries for row in rows(Cell(**each["cell"]), _measurements(each))]
    return "\n".join(["\n\n".join(machines + about), "", HEAD, *lines])


def chart() -> str:
    """Returns an SVG with bars of tokens/s. The bars of a cell share a scale."""
    marks: list[str] = []
    y = CELL_GAP
    for entry in _results():
        cell = entry["cell"]
        title = f"{cell['model']} {cell['quantization']}, {cell['load']}"
        marks.append(f'<text x="0" y="{y + 12}" font-weight="bold">{title}</text>')
        measured = [each for each in _measurements(entry) if each.rates]
        most = max(median(each.rates) for each in measured)
        for each in measured:
            y += ROW_HEIGHT
            marks += _bar(each, most, y)
        y += ROW_HEIGHT + CELL_GAP
    width = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" '
    style = 'font-family="sans-serif" font-size="12">'
    return "\n".join([head + style, *marks, "</svg>\n"])


def _bar(each: Measurement, most: float, y: int) -> Iterator[str]:
    rate = median(each.rates)
    colour = OURS_COLOUR if each.name.startswith("hearth") else PEER_COLOUR
    length = rate / most * BAR_WIDTH
    yield f'<text x="{LABEL_WIDTH - 8}" y="{y + 12}" text-anchor="end">{each.name}</text>'
    yield (
        f'<rect x="{LABEL_WIDTH}" y="{y + 2}" width="{length:.1f}" height="{ROW_HEIGHT - 4}" '
        f'fill="{colour}"/>'
    )
    yield f'<text x="{LABEL_WIDTH + length + 6:.1f}" y="{y + 12}">{rate:.1f}</text>'


def _ratio(ours: Measurement, other: Measurement) -> str:
    """Returns the ratio of the medians and the range of the turns' ratios; empty without turns."""
    if not other.rates:
        return ""
    turns = [mine / its for mine, its in zip(ours.rates, other.rates, strict=True)]
    of_medians = median(ours.rates) / median(other.rates)
    return f"{of_medians:.2f} ({min(turns):.2f} to {max(turns):.2f})"


def _measurements(entry: dict[str, Any]) -> list[Measurement]:
    return [Measurement(**each) for each in entry["measurements"]]


def _results() -> list[dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.is_file() else []
    return [json.loads(line) for line in lines]
