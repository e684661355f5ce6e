"""Prompts to answer: from a file, written by the model itself, or from the included forms."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from typing import Any

from common.files import read_bounded
from inference_api.text.tokens import HuggingFaceTokenizer

Prompt = tuple[int, ...]

FORMS_FILE = Path(__file__).parent / "prompts.txt"
MAX_FILE_BYTES = 64 * 1024**2
QUESTION_TOKENS = range(4, 65)
_SLOT = re.compile(r"\{(\w+?)2?\}")
_PROBES = ("A", "n", "1", "?", "É", "(")  # messages with different beginnings


def read_prompts(path: Path, tokenizer: HuggingFaceTokenizer) -> Iterator[Prompt]:
    """Yields a prompt for each line: a user's message, or an object with the `messages` of a chat
    or a bare `prompt`. Raises ValueError for a file that is too large, or a line that is no
    prompt."""
    try:
        lines = read_bounded(path, MAX_FILE_BYTES).decode().splitlines()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield tuple(_encoded(line, tokenizer))
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number} is no prompt ({error}); give text, or JSON with messages "
                "or prompt."
            ) from error


def _encoded(line: str, tokenizer: HuggingFaceTokenizer) -> list[int]:
    if not line.startswith("{"):
        return chat(line, tokenizer)
    entry: dict[str, Any] = json.loads(line)
    if "messages" in entry:
        return tokenizer.encode_chat(entry["messages"])
    return tokenizer.encode(str(entry["prompt"]))


def chat(message: str, tokenizer: HuggingFaceTokenizer) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": message}])


def ordinary_messages(seed: int) -> Iterator[str]:
    """Yields the forms, filled with random words, endlessly and with repetitions."""
    forms, words = _read_forms()
    rng = Random(seed)
    while True:
        text = rng.choice(forms)
        drawn = {slot: rng.sample(words[slot], 2) for slot in dict.fromkeys(_SLOT.findall(text))}
        for slot, (first, second) in drawn.items():
            text = text.replace(f"{{{slot}}}", first).replace(f"{{{slot}2}}", second)
        yield text


def _read_forms() -> tuple[list[str], dict[str, list[str]]]:
    sections: dict[str, list[str]] = {"": []}
    name = ""
    for line in FORMS_FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            sections[name] = []
        elif line and not line.startswith("#"):
            sections[name].append(line)
    return sections.pop(""), sections


def turn_of_user(tokenizer: HuggingFaceTokenizer) -> tuple[Prompt, int] | None:
    """Returns the tokens before a user's message and the token that ends it; None without a chat
    template, or if it has no such tokens.

    A chat model that continues from these tokens writes a question that users might ask (Xu et al.
    2024, "Magpie", arXiv 2406.08464).
    """
    if tokenizer.info()["chat_template"] is None:
        return None
    prompts = [chat(probe, tokenizer) for probe in _PROBES]
    before = _common_beginning(prompts)
    after = _common_beginning([prompt[::-1] for prompt in prompts])[::-1]
    is_special = (tokenizer.special_token(token) is not None for token in after)
    end = next((token for token, special in zip(after, is_special, strict=True) if special), None)
    return None if end is None or not before else (tuple(before), end)


def _common_beginning(lists: Sequence[list[int]]) -> list[int]:
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*lists, strict=False))
    return [column[0] for column in columns]


def own_questions(
    answers: Iterable[Sequence[int]], end: int, tokenizer: HuggingFaceTokenizer
) -> Iterator[str]:
    """Yields the usable messages that the model wrote as a user: complete, with a usual length."""
    for answer in answers:
        ids = list(takewhile(lambda token: token != end, answer))
        text = tokenizer.decode(ids).strip()
        if len(ids) < len(answer) and len(ids) in QUESTION_TOKENS and text:
            yield text


def distinct(prompts: Iterable[Prompt], without: Iterable[Prompt] = ()) -> Iterator[Prompt]:
    seen = set(without)
    for prompt in prompts:
        if prompt not in seen:
            seen.add(prompt)
            yield prompt


def interleaved(first: Sequence[str], second: Iterator[str]) -> Iterator[str]:
    """Yields from both in turn until `first` ends, then the rest of `second`."""
    for message in first:
        yield message
        yield from islice(second, 1)
    yield from second
