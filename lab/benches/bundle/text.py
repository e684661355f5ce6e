"""Formats the figures of `bench-bundle` as Markdown."""

from collections.abc import Iterable, Sequence

from lab.benches.bundle.figures import Spread


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def ms(spread: Spread | None, *parts: str) -> str:
    """Returns parts of a spread, by default median and p95, in milliseconds."""
    if spread is None:
        return "–"
    return " / ".join(
        _shown(1000 * getattr(spread, f"{part}_s")) for part in parts or ("median", "p95")
    )


def _shown(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
