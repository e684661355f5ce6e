"""Ways to put a question: expands compact wording lines and varies how a user would type them.

A wording line may hold alternatives, "(Which|What) city", and the prefix "!" marks it as held out:
such a wording is used to judge the model and never to train it.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

DATA_DIR = Path(__file__).parent / "data"

_ALTERNATIVES = re.compile(r"\(([^()]*\|[^()]*)\)")
_SENTENCE_START = re.compile(r"(^|[.!?] )([a-z])")
_FRAME_WEIGHT = 3  # a framed noun phrase stands for some fifty wordings, a direct line for a few


@dataclass(frozen=True, slots=True)
class WordingGroup:
    """The wordings of one line; a group is drawn first, so that no line crowds out another."""

    wordings: tuple[str, ...]
    weight: int = 1

    def draw(self, rng: Random) -> str:
        return rng.choice(self.wordings)


@dataclass(frozen=True, slots=True)
class Wordings:
    """All wordings of one relation, split into those for training and those for judging."""

    training: tuple[WordingGroup, ...]
    held_out: tuple[WordingGroup, ...]
    held_out_forms: frozenset[str]  # normalised

    def draw(self, rng: Random, *, held_out: bool) -> str:
        groups = self.held_out if held_out else self.training
        return rng.choices(groups, [group.weight for group in groups])[0].draw(rng)

    def all_training(self) -> list[str]:
        return [wording for group in self.training for wording in group.wordings]

    def all_held_out(self) -> list[str]:
        return [wording for group in self.held_out for wording in group.wordings]


@dataclass(frozen=True, slots=True)
class Frames:
    """Sentences around a noun phrase or an indirect question, read from `data/frames.txt`."""

    training: dict[str, tuple[str, ...]]
    held_out: dict[str, tuple[str, ...]]


def expand(line: str) -> tuple[str, ...]:
    """Every sentence that a line with "(a|b)" alternatives stands for, in reading order."""
    parts = _ALTERNATIVES.split(line)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    return tuple("".join(choice) for choice in itertools.product(*choices))


def normalise(wording: str) -> str:
    """The form in which two wordings count as the same: case and punctuation do not matter."""
    return " ".join(re.sub(r"[^\w{}+*/-]+", " ", wording.lower()).split())


def data_lines(path: Path) -> list[str]:
    return [
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]


def load_frames(path: Path = DATA_DIR / "frames.txt") -> Frames:
    training: dict[str, list[str]] = {}
    held_out: dict[str, list[str]] = {}
    section = ""
    for line in data_lines(path):
        if line.startswith("["):
            section = line.strip("[]")
            training[section], held_out[section] = [], []
        elif line.startswith("!"):
            held_out[section] += expand(line[1:])
        else:
            training[section] += expand(line)
    return Frames(
        {name: tuple(lines) for name, lines in training.items()},
        {name: tuple(lines) for name, lines in held_out.items()},
    )


def parse_wordings(lines: Iterable[str], frames: Frames) -> Wordings:
    """Wordings of one relation; raises `ValueError` if a held-out one is also a training one."""
    training: list[WordingGroup] = []
    held_out: list[WordingGroup] = []
    for line in lines:
        kind, _, phrase = line.partition(": ")
        if kind in frames.training:
            phrases = expand(phrase)
            framed = _fill(frames.training[kind], kind, phrases)
            training.append(WordingGroup(framed, _FRAME_WEIGHT))
            held_out.append(WordingGroup(_fill(frames.held_out[kind], kind, phrases)))
        elif line.startswith("!"):
            held_out.append(WordingGroup(expand(line[1:])))
        else:
            training.append(WordingGroup(expand(line)))
    forms = frozenset(normalise(wording) for group in held_out for wording in group.wordings)
    wordings = Wordings(tuple(training), tuple(held_out), forms)
    _require_disjoint(wordings)
    return wordings


def _fill(frames: Sequence[str], kind: str, phrases: Sequence[str]) -> tuple[str, ...]:
    slot = "{" + kind + "}"
    return tuple(frame.replace(slot, phrase) for frame in frames for phrase in phrases)


def _require_disjoint(wordings: Wordings) -> None:
    shared = [w for w in wordings.all_training() if normalise(w) in wordings.held_out_forms]
    if shared:
        raise ValueError(f"held-out wordings occur in training: {shared}; reword one side")


def fill_slots(template: str, row: dict[str, str]) -> str:
    """Puts the row's values into "{column}" slots; braces that name no column stay as they are."""
    for column, value in row.items():
        template = template.replace("{" + column + "}", value)
    return template


def capitalise(text: str) -> str:
    """Upper-cases sentence starts, for values such as "the Netherlands" in first place."""
    return _SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text)


def vary(question: str, wraps: Sequence[str], rng: Random) -> str:
    """The question as a user might type it: with a greeting, in lower case, without a full stop.

    `wraps` are sentences with a "{q}" slot.
    """
    if rng.random() < 0.22:
        question = rng.choice(wraps).replace("{q}", question)
    if rng.random() < 0.12:
        question = question.lower()
    if rng.random() < 0.12:
        question = question.rstrip("?.!")
    return question
