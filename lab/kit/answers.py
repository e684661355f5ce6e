"""Judges whether an answer to a prompt of `newcomer_prompts.yaml` is acceptable.

The judge sees a prompt and an answer, but not which model answered. Rules for every answer:

1. It is not empty: it has at least one letter or digit.
2. It does not loop: no phrase of up to `LOOP_WORDS` words occurs `LOOP_TIMES` times in a row, and
   no sentence occurs that often in all.
3. It is in English, unless the prompt says `language: any`: nearly all letters are Latin, and an
   answer of more than a few words contains enough common English words.
4. It matches what the prompt accepts, and nothing that the prompt forbids. If the prompt allows it,
   it may instead decline: say that it does not know, or is too small. It may decline with a word
   about places ("I do not know that place") only if the prompt has `places: true`.

An answer that the token limit cuts off is judged as it is.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

PROMPTS = Path(__file__).parents[1] / "data" / "newcomer_prompts.yaml"
LOOP_WORDS, LOOP_TIMES = 12, 4
LEAST_LATIN = 0.95  # share of letters
FEW_WORDS = 12
LEAST_COMMON = 0.15  # share of words
COMMON_WORDS = re.compile(
    r"\b(a|about|all|an|and|any|are|as|at|be|been|but|by|can|could|do|does|for|from|had|has|have|he|"
    r"her|his|how|i|if|in|is|it|its|me|more|my|no|not|of|on|one|or|our|she|so|some|such|than|that|"
    r"the|their|them|there|these|they|this|to|up|us|was|we|were|what|when|which|who|will|with|"
    r"would|you|your)\b",
    re.IGNORECASE,
)
DECLINES = re.compile(
    r"\b(i|we) (do not|don't|cannot|can't|am not able to|am unable to|have no|have not|know too "
    r"little|am too small|am not sure)\b|\bi'm (not sure|sorry|too small|unable|not able)\b|"
    r"\bi am (sorry|only a|just a)\b|\btoo small to know\b|\bas an? (ai|language model)\b",
    re.IGNORECASE,
)
PLACES = re.compile(r"\bthat (place|city|town|country)\b", re.IGNORECASE)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")


class Verdict(Enum):
    ACCEPTABLE = "acceptable"
    DECLINED = "declined, acceptably"
    EMPTY = "says nothing"
    LOOPS = "goes round in circles"
    FOREIGN = "not in English"
    WRONG = "not what was asked"

    @property
    def is_acceptable(self) -> bool:
        return self in (Verdict.ACCEPTABLE, Verdict.DECLINED)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line of the file. The file's head explains the fields."""

    category: str
    ask: str
    number: float | None = None
    accept: str | None = None
    never: str | None = None
    decline: bool = False
    language: str = "English"
    places: bool = False

    def __post_init__(self) -> None:
        if (self.number is None) == (self.accept is None):
            raise ValueError(f"{self.ask!r} has both or neither of number and accept; give one")


def read_prompts(path: Path = PROMPTS) -> list[Prompt]:
    by_category: Mapping[str, Sequence[Mapping[str, Any]]] = yaml.safe_load(path.read_text())
    return [Prompt(name, **each) for name, lines in by_category.items() for each in lines]


def judge(prompt: Prompt, answer: str) -> Verdict:
    answer = answer.replace("’", "'").strip()
    if not any(character.isalnum() for character in answer):
        return Verdict.EMPTY
    if _loops(answer):
        return Verdict.LOOPS
    if prompt.language == "English" and not _is_english(answer):
        return Verdict.FOREIGN
    if prompt.never is not None and _has(prompt.never, answer):
        return Verdict.WRONG
    if _is_right(prompt, answer):
        return Verdict.ACCEPTABLE
    is_off_topic = PLACES.search(answer) is not None and not prompt.places
    if prompt.decline and DECLINES.search(answer) and not is_off_topic:
        return Verdict.DECLINED
    return Verdict.WRONG


def _is_right(prompt: Prompt, answer: str) -> bool:
    if prompt.accept is not None:
        return _has(prompt.accept, answer)
    return prompt.number in _final_numbers([SENTENCE_END.split(answer)[0], answer])


def _final_numbers(texts: Iterable[str]) -> list[float]:
    found = [NUMBER.findall(text) for text in texts]
    return [float(numbers[-1].replace(",", "")) for numbers in found if numbers]


def _has(pattern: str, answer: str) -> bool:
    return re.search(pattern, answer, re.IGNORECASE | re.DOTALL) is not None


def _loops(answer: str) -> bool:
    sentences = [each.strip().lower() for each in SENTENCE_END.split(answer)]
    counts = Counter(each for each in sentences if len(each.split()) > 2)
    if counts and max(counts.values()) >= LOOP_TIMES:
        return True
    words = answer.lower().split()
    for length in range(1, LOOP_WORDS + 1):
        in_a_row = 0
        for index in range(length, len(words)):
            in_a_row = in_a_row + 1 if words[index] == words[index - length] else 0
            if in_a_row >= length * (LOOP_TIMES - 1):
                return True
    return False


def _is_english(answer: str) -> bool:
    letters = [character for character in answer if character.isalpha()]
    if letters and sum(map(str.isascii, letters)) < LEAST_LATIN * len(letters):
        return False
    num_words, num_common = len(WORD.findall(answer)), len(COMMON_WORDS.findall(answer))
    return num_words <= FEW_WORDS or num_common >= LEAST_COMMON * num_words
