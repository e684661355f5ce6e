"""Turns pydantic's errors into sentences that name path, value, bound and remedy.

Faulty request bodies, files and settings of all services are refused in these words. Pure: any
thread.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

MAX_FAULTS = 100  # faults that are listed; more would not help
MAX_SHOWN = 40  # characters of a value or key
MAX_NAME_CHARS = 64  # longer keys are not compared with known ones
LIKELY, CERTAIN = 0.7, 0.8  # difflib's ratios of two names, above which one is a typo
MAX_WRONG_LETTERS = 2  # in a name that is taken for a misspelt one
SECRETS = ("SECRET", "REDIS_URL", "API_KEY", "API_BASE")  # parts of names of secret variables

Step = int | str
_BARE = re.compile(rf"[\w-]{{1,{MAX_SHOWN}}}")  # keys that a path shows without quotes

# Keyed by pydantic's types of error; values are the message after the path.
_TEXTS = {
    "missing": "is missing; give it",
    "string_unicode": "has half of a surrogate pair; give whole characters",
    "string_too_short": "is empty; give {min_length} character or more",
    "string_too_long": "has more than {max_length} characters; shorten it",
    "too_short": "has {entries} entries; give {min_length} or more",
    "too_long": "has {entries} entries; give {max_length} or fewer",
    "json_invalid": "is not JSON ({error}); correct it",
}
_VALUES = {  # after "is ...; give "
    "string_type": "a text in quotes",
    "string_pattern_mismatch": "one that fits {pattern}",
    "path_type": "a path",
    "int_type int_parsing int_parsing_size int_from_float": "an integer",
    "float_type float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type bool_parsing": "true or false",
    "literal_error enum": "{expected}",
    "list_type tuple_type frozen_set_type": "a list",
    "dict_type model_type model_attributes_type dataclass_type": "an object{known}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_IS = "is {given}; give "
_FORMATS = _TEXTS | {kind: _IS + what for kinds, what in _VALUES.items() for kind in kinds.split()}


def fault_of(detail: ErrorDetails, model: object = None, subject: str = "it") -> str:
    """Returns an error as a sentence. `model` is the validated type; with it, messages about keys
    list the known ones. `subject` names the whole value, which has no path."""
    message = message_of(detail, model, subject)
    return f"{path_of(detail['loc'])}: {message}." if detail["loc"] else f"{message}."


def message_of(detail: ErrorDetails, model: object = None, subject: str = "it") -> str:
    """Returns the sentence without path and full stop."""
    if detail["type"] in _UNKNOWN:
        *place, key = detail["loc"]
        return unknown_key(str(key), keys_at(model, place))
    if template := _FORMATS.get(detail["type"]):
        message = _filled(template, detail, model)
        return message if detail["loc"] else f"{subject} {message}"
    return detail["msg"].removeprefix("Value error, ")


def unknown_key(name: str, known: Collection[str]) -> str:
    """Returns the message about a key that is not among the known ones."""
    if near := nearest(name, known):
        return f"is not known (did you mean {near}?); correct it or leave it out"
    return f"is not known; leave it out{_listed(known)}"


def is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Returns whether a known name differs by a letter or two, ignoring case. It must be so few,
    because another server's `reasoning_format` is no misspelt `reasoning_effort`."""
    if (near := nearest(name, known, CERTAIN)) is None:
        return False
    changes = SequenceMatcher(None, name.lower(), near.lower()).get_opcodes()
    wrong = (max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in changes if tag != "equal")
    return sum(wrong) <= MAX_WRONG_LETTERS


def nearest(name: str, known: Iterable[str], closeness: float = LIKELY) -> str | None:
    """Returns the known name that was likely meant by this one, ignoring case."""
    if len(name) > MAX_NAME_CHARS:
        return None
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, 1, closeness)
    return by_lower[found[0]] if found else None


def keys_at(model: object, location: Sequence[Step]) -> list[str]:
    """Returns the keys of the object at a location in a value of the type `model`."""
    objects = [*_fields_in(model)]
    for step in location:
        annotations = [
            field.annotation
            for fields in objects
            for name, field in fields.items()
            if step in (name, field.alias)
        ]
        # Indexes of lists and names of a mapping's entries are no fields.
        objects = [fields for each in annotations for fields in _fields_in(each)] or objects
    names = (field.alias or name for fields in objects for name, field in fields.items())
    return [*dict.fromkeys(names)]


def path_of(location: Sequence[Step]) -> str:
    """Returns a path like `messages[0].content`."""
    texts = [
        f"[{step}]"
        if isinstance(step, int)
        else f".{step if _BARE.fullmatch(step) else shown(step)}"
        for step in location
    ]
    return "".join(texts).removeprefix(".")


def shown(value: object) -> str:
    """Returns a value for messages: short and printable."""
    if isinstance(value, list | tuple | dict):
        return "an object" if isinstance(value, dict) else "a list"
    try:
        text = json.dumps(value[: MAX_SHOWN + 1] if isinstance(value, str) else value, default=str)
    except ValueError:  # an integer with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def capped(faults: Sequence[str]) -> list[str]:
    """Returns the first faults, and a sentence that says how many more there are."""
    more = len(faults) - MAX_FAULTS
    return [*faults[:MAX_FAULTS], *[f"And {more} more faults."] * (more > 0)]


def setting_faults(error: ValidationError) -> list[str]:
    """Returns a sentence for each fault: the variable, its value unless that may be a secret, and
    the remedy. An error with `faults` in its context gets a sentence for each of them."""
    return [fault for detail in error.errors() for fault in _setting_faults(detail)]


def _setting_faults(detail: ErrorDetails) -> list[str]:
    field, *inner = detail["loc"]
    variable = path_of((str(field).upper(), *inner))
    is_secret = any(each in variable for each in SECRETS)
    value = "***" if is_secret else f"{detail['input']!r:.200}"
    if faults := detail.get("ctx", {}).get("faults"):
        return [f"{variable}={detail['input']}: {fault}" for fault in faults]
    if template := _FORMATS.get(detail["type"]):
        return [f"{variable}={value}: {_filled(template.partition('; ')[2], detail)}, or unset it."]
    remedy = "" if detail["type"] in _UNKNOWN else "; correct it or unset it"
    return [f"{variable}={value}: {message_of(detail)}{remedy}."]


def _filled(template: str, detail: ErrorDetails, model: object = None) -> str:
    value = detail["input"]
    fields = {name: whole_number(bound) for name, bound in detail.get("ctx", {}).items()}
    fields["given"] = shown(value if detail["type"] == "int_type" else whole_number(value))
    fields["entries"] = len(value) if hasattr(value, "__len__") else ""
    if "{known}" in template:
        fields["known"] = _listed(keys_at(model, detail["loc"]))
    return template.format_map(fields)


def _listed(known: Collection[str]) -> str:
    return f"; known keys: {', '.join(known)}" if known else ""


def _fields_in(kind: Any) -> Iterator[dict[str, FieldInfo]]:
    """Yields the fields of each model in an annotation, also in lists, mappings and unions."""
    if isinstance(kind, type) and hasattr(kind, "__pydantic_fields__"):
        yield kind.__pydantic_fields__
    for part in get_args(kind):
        yield from _fields_in(part)


def whole_number(value: object) -> object:
    """Returns 5 for 5.0, because JSON does not tell them apart, and other values as they are."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**64
    return int(value) if is_whole else value  # type: ignore[call-overload]
