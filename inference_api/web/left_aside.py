"""Records the fields of a body that are accepted but ignored (left aside).

The client reads them in `X-Hearth-Ignored`, the operator in the log and the dashboard.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from common.faults import is_misspelt, unknown_key

MAX_UNKNOWN = 64  # unknown fields of a body
MAX_REPORTED = 32  # paths that are reported, because they go into a header
MAX_NAME_CHARS = 64
UNKNOWN = "unknown"  # name in metrics of unknown fields, and of names that cannot be shown
_SHOWN = re.compile(r"[\w.-]+", re.ASCII)  # names that may be in a header


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """Says what the operator wants to refuse, where it would be ignored otherwise."""

    refuses_unknown: bool = False
    refuses_images: bool = False


DEFAULT_RULES = ReadingRules()


class LeftAside:
    """The ignored paths of one body, collected while it is read. Used by one thread."""

    def __init__(self, body: type[BaseModel], rules: ReadingRules = DEFAULT_RULES) -> None:
        self.rules = rules
        self.paths: dict[str, str] = {}
        """Maps each path in the body to its name in metrics. All unknown names share one."""
        self._places = places(body)
        self._unknown: set[tuple[type[BaseModel], str]] = set()

    def add(
        self, kind: type[BaseModel], name: str, value: object = True, is_known: bool = True
    ) -> None:
        """Record the field `name` of an object of this kind, unless its value is empty or false."""
        if value in ({}, [], "", False) or len(self.paths) == MAX_REPORTED:
            return
        shown = name if len(name) <= MAX_NAME_CHARS and _SHOWN.fullmatch(name) else UNKNOWN
        place = self._places.get(kind, "")
        path = f"{place}.{shown}".removeprefix(".")
        self.paths[path] = path if is_known else f"{place}.{UNKNOWN}".removeprefix(".")

    def add_unknown(self, kind: type[BaseModel], name: str, absent: set[str]) -> str | None:
        """Returns why an unknown field is refused, or None. Its name may be a misspelt name of one
        of the `absent` fields, for example."""
        if (kind, name) in self._unknown:
            return None
        self._unknown.add((kind, name))
        if len(self._unknown) > MAX_UNKNOWN:
            return f"is one of more than {MAX_UNKNOWN} fields that are not known; leave them out"
        if is_misspelt(name, absent):
            return unknown_key(name, absent)
        if self.rules.refuses_unknown:
            return unknown_key(name, ())
        self.add(kind, name, is_known=False)
        return None


@cache
def places(body: type[BaseModel]) -> dict[type[BaseModel], str]:
    """Returns the first path of each kind of object in a body, such as `tools[]`; empty for the
    body itself."""
    found: dict[type[BaseModel], str] = {}

    def find(kind: type[BaseModel], place: str) -> None:
        found[kind] = place
        for name, field in kind.model_fields.items():
            path = f"{place}.{field.alias or name}".removeprefix(".")
            for inner, inner_place in _kinds_in(field.annotation, path):
                if inner not in found:
                    find(inner, inner_place)

    find(body, "")
    return found


def _kinds_in(annotation: Any, path: str) -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, path
    of_each = "[]" if get_origin(annotation) is list else ""
    for part in get_args(annotation):
        yield from _kinds_in(part, path + of_each)
