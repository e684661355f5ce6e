"""Facts: each table draws one row (column to text) for a relation to talk about.

Tables of facts are read from `data/`; tables of numbers and of made-up texts live in `numbers` and
`texts`. A table of facts gives the same rows for training and for judging: the facts are known, the
wording is not. A table of numbers keeps about a tenth of its rows for judging alone.
"""

import json
import zlib
from collections.abc import Callable
from random import Random

from .wordings import DATA_DIR, data_lines

Row = dict[str, str]
DrawRow = Callable[[Random, bool], Row]  # (rng, held_out) -> row


def is_held_out(*parts: object) -> bool:
    """Whether this combination belongs to the tenth that is kept for judging; stable for ever."""
    return zlib.crc32(repr(parts).encode()) % 10 == 0


def draw_split(
    draw: Callable[[Random], Row],
    identity: Callable[[Row], tuple[str, ...] | None],
    *,
    judges_known: bool = False,
) -> DrawRow:
    """A table over `draw` that keeps the held-out identities apart by drawing again.

    A row without identity belongs to training; `judges_known` judges on such rows as well.
    """

    def draw_row(rng: Random, held_out: bool) -> Row:
        while True:
            row = draw(rng)
            key = identity(row)
            is_apart = judges_known and held_out if key is None else is_held_out(*key)
            if is_apart == held_out:
                return row

    return draw_row


def from_rows(rows: list[Row]) -> DrawRow:
    return lambda rng, _held_out: rng.choice(rows)


def read_tsv(name: str) -> list[Row]:
    header, *lines = data_lines(DATA_DIR / f"{name}.tsv")
    columns = header.split("|")
    return [dict(zip(columns, line.split("|"), strict=True)) for line in lines]


def split_lines(name: str) -> tuple[list[str], list[str]]:
    """Returns the lines of a text file for training and, those that begin with "!", for judging."""
    lines = data_lines(DATA_DIR / f"{name}.txt")
    held_out = [line.removeprefix("!") for line in lines if line.startswith("!")]
    return [line for line in lines if not line.startswith("!")], held_out


def read_blocks(name: str) -> list[list[str]]:
    """The blank-line separated blocks of a text file, each as its lines."""
    text = (DATA_DIR / f"{name}.txt").read_text(encoding="utf-8")
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [block.splitlines() for block in kept.strip().split("\n\n")]


def countries() -> list[Row]:
    rows = read_tsv("countries")
    keys = ("country", "capital", "continent", "language", "currency")
    for row in rows:
        facts = {key: row[key].removeprefix("the ") for key in keys}
        row["json"] = json.dumps(facts, indent=2)
    return rows


def how_to() -> list[Row]:
    return [
        {"task": task, "steps": "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))}
        for task, *steps in read_blocks("how_to")
    ]


def snippets() -> list[Row]:
    return [{"task": task, "code": "\n".join(lines)} for task, *lines in read_blocks("snippets")]


def functions() -> list[Row]:
    blocks = read_blocks("functions")
    return [{"purpose": purpose, "code": "\n".join(lines)} for purpose, *lines in blocks]


def ordered_lists() -> dict[str, list[str]]:
    """Days, months, planets and so on, by the name that a question uses."""
    pairs = (line.split(": ") for line in data_lines(DATA_DIR / "lists.txt"))
    return {name: items.split(", ") for name, items in pairs}


def ring(items: list[str]) -> list[Row]:
    """Each item with its neighbours; the first follows the last."""
    return [
        {
            "item": item,
            "before": items[i - 1],
            "after": items[(i + 1) % len(items)],
            "number": str(i + 1),
        }
        for i, item in enumerate(items)
    ]


def lists() -> list[Row]:
    return [
        {"item": name, "items": ", ".join(items[:-1]) + " and " + items[-1]}
        for name, items in ordered_lists().items()
    ]


def fact_tables() -> dict[str, DrawRow]:
    names = (
        *("cities", "opposites", "plurals", "past_tenses", "animals", "colours", "glossary"),
        *("famous", "phrases", "synonyms", "rhymes"),
    )
    tables = {name: from_rows(read_tsv(name)) for name in names}
    lists_by_name = ordered_lists()
    opposites = read_tsv("opposites")
    swapped = [{"word": row["other"], "other": row["word"]} for row in opposites]
    return tables | {
        "countries": from_rows(countries()),
        "opposites": from_rows(opposites + swapped),
        "how_to": from_rows(how_to()),
        "functions": from_rows(functions()),
        "snippets": from_rows(snippets()),
        "days": from_rows(ring(lists_by_name["days of the week"])),
        "months": from_rows(ring(lists_by_name["months of the year"])),
        "lists": from_rows(lists()),
    }
