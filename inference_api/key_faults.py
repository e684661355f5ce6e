"""Faults of a file's keys, from pydantic's errors: path, value, bound and remedy in one line."""

import json
from collections.abc import Iterable, Sequence

from pydantic_core import ErrorDetails

# pydantic's types of error -> the message after the key's path.
_SAID = {
    "missing": "is missing; give it",
    "extra_forbidden": "no such key; known: {known}",
    "string_type": "is {given}; give a string; put it in quotes",
    "string_unicode": "has half of a surrogate pair; give whole characters",
    "int_type": "is {given}; give an integer",
    "float_type": "is {given}; give a number",
    "finite_number": "is {given}; give a finite number",
    "bool_type": "is {given}; give true or false",
    "tuple_type": "is {given}; give a list",
    "model_type": "is {given}; give keys; known: {known}",
    "literal_error": "is {given}; known: {expected}",
    "greater_than_equal": "is {given}; give {ge} or more",
    "less_than_equal": "is {given}; give {le} or less",
    "string_too_short": "is empty; give {min_length} character or more",
    "string_too_long": "has more than {max_length} characters; shorten it",
    "too_long": "has more than {max_length} entries; remove some",
}


def fault_of(detail: ErrorDetails, known: Iterable[str]) -> str:
    """`known`: the keys that the mapping at fault may have."""
    path, kind = detail["loc"], detail["type"]
    said = _SAID.get(kind)
    if said is None:
        return f"{_path(path)}: {detail['msg'].removeprefix('Value error, ')}."
    given = {"given": shown(detail["input"]), "known": ", ".join(known)}
    bounds = {name: _without_quotes(bound) for name, bound in detail.get("ctx", {}).items()}
    return f"{_path(path)}: {said.format_map(given | bounds)}."


def _without_quotes(bound: object) -> str:
    """A bound as pydantic has it: a number, or quoted values."""
    if isinstance(bound, float):
        return f"{bound:.15g}"
    return str(bound).replace("'", "")


def _path(steps: Sequence[int | str]) -> str:
    texts = [
        f"[{step}]"
        if isinstance(step, int)
        else f".{step if step.isidentifier() and len(step) <= 40 else shown(step)}"
        for step in steps
    ]
    return "".join(texts).removeprefix(".")


def shown(value: object) -> str:
    """A value as messages have it: at most 40 characters, all of them printable."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    try:
        text = json.dumps(value)
    except ValueError:  # of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."
