"""Relations: what can be asked, in which wordings, and which answer is right.

A relation joins a table (`tables`, `numbers`, `texts`) with wordings and one answer. From it come
both the training exchanges and the questions that judge the model.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from .noise import disturb
from .numbers import number_tables
from .tables import DrawRow, Row, fact_tables, from_rows, read_blocks
from .texts import draw_beyond, draw_unknown_place, text_tables
from .wordings import (
    DATA_DIR,
    Frames,
    Wordings,
    capitalise,
    data_lines,
    fill_slots,
    load_frames,
    normalise,
    parse_wordings,
    vary,
)

# How often a category is drawn for training; the harder it generalises, the more it gets.
CATEGORY_WEIGHTS = {
    "countries": 16,
    "cities": 15,
    "general": 26,
    "people": 5,
    "unknown": 10,
    "beyond": 20,
    "arithmetic": 40,
    "comparing": 18,
    "units": 8,
    "counting": 16,
    "sequences": 11,
    "words": 16,
    "language": 20,
    "technical": 20,
    "how_to": 3,
    "code": 8,
    "json": 6,
    "talk": 40,
    "stories": 2,
    "letters": 6,
    "copying": 4,
    "reading": 26,
}
# A greeting or a lower-cased line would change the text that these are asked to give back.
_VERBATIM_CATEGORIES = ("copying", "json", "records")
_DISTURBED_SHARE = 0.2


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
        if self.category in _VERBATIM_CATEGORIES:
            return self.answer_about(row, capitalise(fill_slots(wording, row)))
        if not held_out and rng.random() < _DISTURBED_SHARE:
            wording = self._disturbed(wording, rng)
        question = capitalise(fill_slots(wording, row))
        return self.answer_about(row, vary(question, wraps, rng))

    def _disturbed(self, wording: str, rng: Random) -> str:
        """The wording with noise in it, unless that would make it one of those kept for judging."""
        disturbed = disturb(wording, rng)
        return wording if normalise(disturbed) in self.wordings.held_out_forms else disturbed

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
    tables = fact_tables() | number_tables() | text_tables()
    known = read_relations(DATA_DIR / "relations.txt", tables, frames)
    blocks = _block_relations("general", frames) + _block_relations("talk", frames)
    return known + _unknown_relations(known) + [_beyond(known)] + blocks


def read_relations(path: Path, tables: Mapping[str, DrawRow], frames: Frames) -> list[Relation]:
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
            answer="I do not know that place, so I cannot say.",
            key_columns=("refusal",),
        )
        for relation in known
        if relation.category in ("countries", "cities") and relation.name.endswith(asked)
    ]


def _beyond(known: list[Relation]) -> Relation:
    """The questions for a word's meaning, asked about what the model is too small to know."""
    define = next(relation for relation in known if relation.name == "technical.define")
    return replace(
        define,
        name="beyond.define",
        category="beyond",
        draw_row=draw_beyond,
        answer="I am too small to know about {term}. "
        "Ask me about countries, cities, sums, words or computers.",
        key_columns=("refusal",),
    )


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
