"""Turns pydantic's errors into sentences with path, value, bound and remedy. Pure: any thread."""

import json
from collections.abc import Iterable, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

MAX_FAULTS = 100  # faults that are listed; more would not help
MAX_SHOWN = 40  # characters of a value or key
SECRETS = ("SECRET", "REDIS_URL", "API_KEY", "API_BASE")  # parts of names of secret variables

# Keyed by pydantic's type of error; values are the message after the key's path.
_SAID = {
    "missing": "is missing; give it",
    "extra_forbidden": "no such key; known: {known}",
    "string_type": "is {given}; give a string; put it in quotes",
    "string_unicode": "has half of a surrogate pair; give whole characters",
    "string_pattern_mismatch": "is {given}; give one that fits {pattern}",
    "int_type": "is {given}; give an integer",
    "int_parsing": "is {given}; give an integer",
    "float_type": "is {given}; give a number",
    "float_parsing": "is {given}; give a number",
    "finite_number": "is {given}; give a finite number",
    "bool_type": "is {given}; give true or false",
    "bool_parsing": "is {given}; give true or false",
    "path_type": "is {given}; give a path",
    "tuple_type": "is {given}; give a list",
    "dict_type": "is {given}; give a mapping of names",
    "model_type": "is {given}; give keys; known: {known}",
    "literal_error": "is {given}; known: {expected}",
    "greater_than_equal": "is {given}; give {ge} or more",
    "less_than_equal": "is {given}; give {le} or less",
    "string_too_short": "is empty; give {min_length} character or more",
    "string_too_long": "has more than {max_length} characters; shorten it",
    "too_long": "has more than {max_length} entries; remove some",
}


def fault_of(detail: ErrorDetails, known: Iterable[str]) -> str:
    """Returns a sentence. `known` are the keys that the faulty mapping may have."""
    path, said = _path(detail["loc"]), _SAID.get(detail["type"])
    place = f"{path}: " if path else ""
    if said is None:
        return f"{place}{detail['msg'].removeprefix('Value error, ')}."
    given = {"given": shown(detail["input"]), "known": ", ".join(known)}
    bounds = {name: _without_quotes(bound) for name, bound in detail.get("ctx", {}).items()}
    return f"{place}{said.format_map(given | bounds)}."


def capped(faults: Sequence[str]) -> list[str]:
    """Returns the first faults, and how many more there are."""
    more = len(faults) - MAX_FAULTS
    return [*faults[:MAX_FAULTS], *[f"And {more} more faults."] * (more > 0)]


def setting_faults(error: ValidationError) -> list[str]:
    """Returns a sentence for each fault: the variable, its value unless that may be a secret, and
    the remedy. A fault with `faults` in its context stands for each of those."""
    return [fault for detail in error.errors() for fault in _setting_faults(detail)]


def _setting_faults(detail: ErrorDetails) -> list[str]:
    field, *inner = detail["loc"]
    variable = _path((str(field).upper(), *inner))
    is_secret = any(each in variable for each in SECRETS)
    given = "***" if is_secret else f"{detail['input']!r:.200}"
    if faults := detail.get("ctx", {}).get("faults"):
        return [f"{variable}={detail['input']}: {fault}" for fault in faults]
    remedy = detail["msg"].removeprefix("Value error, ")
    return [f"{variable}={given}: {remedy[0].lower()}{remedy[1:]}; correct it or unset it."]


def _without_quotes(bound: object) -> str:
    """Returns pydantic's bound as text: a number, or quoted values."""
    if isinstance(bound, float):
        return f"{bound:.15g}"
    return str(bound).replace("'", "")


def _path(steps: Sequence[int | str]) -> str:
    texts = [
        f"[{step}]"
        if isinstance(step, int)
        else f".{step if step.isidentifier() and len(step) <= MAX_SHOWN else shown(step)}"
        for step in steps
    ]
    return "".join(texts).removeprefix(".")


def shown(value: object) -> str:
    """Returns a value for messages: short and printable."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # an integer with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
