"""What the experts know: for each, the relations of its topic."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.models.default.relations import Relation, load_relations, read_relations
from lab.models.default.tables import DrawRow
from lab.models.default.wordings import load_frames

from .queries import query_tables
from .records import record_tables
from .sums import sums

DATA_DIR = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Topic:
    """The name is that of the expert and the category of its relations. Training reads `tokens`."""

    name: str
    description: str
    tokens: int
    relations: tuple[Relation, ...]


def load_topics() -> dict[str, Topic]:
    known = {relation.name: relation for relation in load_relations()}
    topics = (
        Topic(
            "sums",
            "sums, differences, products and quotients of numbers up to 999, word problems and "
            "units of time and length, worked out step by step",
            1_200_000,
            tuple(sums(known)),
        ),
        Topic(
            "records",
            "short texts and CSV tables of people, orders and trips turned into JSON or CSV",
            1_200_000,
            _read("records", record_tables()),
        ),
        Topic(
            "sql",
            "SQL queries for questions to a database: rows, columns, conditions, counts, "
            "averages, groups and the highest or lowest",
            800_000,
            _read("sql", query_tables()),
        ),
    )
    return {topic.name: topic for topic in topics}


def _read(name: str, tables: Mapping[str, DrawRow]) -> tuple[Relation, ...]:
    frames = load_frames(DATA_DIR / "frames.txt")
    return tuple(read_relations(DATA_DIR / f"{name}.txt", tables, frames))
