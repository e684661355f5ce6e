"""Relations: what can be asked, in which wordings, and which answer is right.

A relation joins a table (`tables`, `numbers`, `texts`) with wordings and one answer. From it come
both the training exchanges and the questions that judge the model.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from .numbers import number_tables
from .tables import DrawRow, Row, fact_tables, from_rows, read_blocks
from .texts import draw_unknown_place, text_tables
from .wordings import (
    DATA_DIR,
    Frames,
    Wordings,
    capitalise,
    data_lines,
    fill_slots,
    load_frames,
    parse_wordings,
    vary,
)

# How often a category is drawn for training; the harder it generalises, the more it gets.
CATEGORY_WEIGHTS = {
    "countries": 20,
    "cities": 20,
    "general": 8,
    "unknown": 4,
    "arithmetic": 22,
    "comparing": 5,
    "units": 7,
    "counting": 5,
    "sequences": 6,
    "words": 12,
    "technical": 7,
    "how_to": 3,
    "code": 3,
    "json": 3,
    "talk": 9,
    "stories": 2,
    "letters": 2,
    "copying": 6,
    "reading": 6,
}
# A greeting or a lower-cased line would change the text that these are asked to give back.
_VERBATIM_CATEGORIES = ("copying", "json")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question with its answer, and what a right answer must hold."""

    relation: str
    category: str
    question: str
    answer: str
    keys: tuple[str, ...]
    is_exact: bool = False

    def is_right(self, reply: str) -> bool:
        if self.is_exact:
            return reply.strip() == self.answer.strip()
        return all(_holds(reply, key) for key in self.keys)


def _holds(reply: str, key: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(key)}(?!\w)", reply, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True)
class Relation:
    """`key_columns` name the columns whose values a right answer must hold."""

    name: str
    category: str
    draw_row: DrawRow
    wordings: Wordings
    answer: str
    key_columns: tuple[str, ...]
    is_exact: bool

    def exchange(self, rng: Random, wraps: tuple[str, ...], *, held_out: bool) -> Exchange:
        """Draws a row and a wording; `held_out` takes both from the part kept for judging."""
        row = self.draw_row(rng, held_out)
        wording = self.wordings.draw(rng, held_out=held_out)
        question = capitalise(fill_slots(wording, row))
        if self.category not in _VERBATIM_CATEGORIES:
            question = vary(question, wraps, rng)
        return self.answer_about(row, question)

    def answer_about(self, row: Row, question: str) -> Exchange:
        return Exchange(
            self.name,
            self.category,
            question,
            capitalise(fill_slots(self.answer, row)),
            tuple(row[column] for column in self.key_columns),
            self.is_exact,
        )


def load_relations() -> list[Relation]:
    frames = load_frames()
    known = _table_relations(DATA_DIR / "relations.txt", frames)
    blocks = _block_relations("general", frames) + _block_relations("talk", frames)
    return known + _unknown_relations(known) + blocks


def _table_relations(path: Path, frames: Frames) -> list[Relation]:
    tables = fact_tables() | number_tables() | text_tables()
    sections: list[list[str]] = []
    for line in data_lines(path):
        if line.startswith("["):
            sections.append([line.strip("[]")])
        else:
            sections[-1].append(line)
    relations = []
    for header, *lines in sections:
        name, table, key = header.split()
        relations.append(
            Relation(
                name,
                name.partition(".")[0],
                tables[table],
                parse_wordings(lines[:-1], frames),
                lines[-1].removeprefix("= ").replace("\\n", "\n"),
                tuple(key.removeprefix("=").split(",")),
                key.startswith("="),
            )
        )
    return relations


def _unknown_relations(known: list[Relation]) -> list[Relation]:
    """The questions about places, asked about places of which the model knows nothing."""
    asked = ("capital", "language", "currency", "continent", "where", "see", "eat", "about")
    return [
        replace(
            relation,
            name=f"unknown.{relation.name}",
            category="unknown",
            draw_row=draw_unknown_place,
            answer="I do not know {place}, so I cannot say.",
            key_columns=("refusal",),
        )
        for relation in known
        if relation.category in ("countries", "cities") and relation.name.endswith(asked)
    ]


def _block_relations(category: str, frames: Frames) -> list[Relation]:
    """Relations of one fact each: wordings, then "= answer" and "* key"."""
    relations = []
    for number, block in enumerate(read_blocks(category)):
        *wordings, answer, key = block
        relations.append(
            Relation(
                f"{category}.{number}",
                category,
                from_rows([{"key": key.removeprefix("* ")}]),
                parse_wordings(wordings, frames),
                answer.removeprefix("= "),
                ("key",),
                False,
            )
        )
    return relations
