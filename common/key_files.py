"""Reads files of plain YAML into pydantic models, with every fault at once. Any thread."""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from common.faults import capped, fault_of, shown
from common.plain_yaml import MAX_NODES, UnusableYaml, read_yaml


class Keys(BaseModel):
    """Base class of every mapping in a file. Immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    @classmethod
    def keys(cls) -> list[str]:
        """Returns its keys as they are written in files."""
        return [field.alias or name for name, field in cls.model_fields.items()]


KeysT = TypeVar("KeysT", bound=Keys)


class KeysFaulty(Exception):
    """The file is wrong. `faults` has all faults, up to a bound."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = capped(faults)


def parse_keys(
    content: bytes,
    model: type[KeysT],
    known: Callable[[ErrorDetails], Iterable[str]],
    further: Callable[[dict[str, Any]], list[str]] = lambda _: [],
    max_nodes: int = MAX_NODES,
    context: object = None,
) -> KeysT:
    """Returns the keys of a file with this content. `known` returns the keys that a faulty mapping
    may have; `further` returns other faults; `context` is for validators. Raises KeysFaulty."""
    try:
        raw, faults = read_yaml(content.decode(), max_nodes)
    except UnicodeDecodeError as error:
        raise KeysFaulty(
            [f"The file is not UTF-8 at byte {error.start}; save it as UTF-8."]
        ) from None
    except UnusableYaml as error:
        raise KeysFaulty([f"The file cannot be read as YAML: {error}."]) from None
    if not isinstance(raw, dict):
        keys = ", ".join(model.keys())
        raise KeysFaulty([f"The file is {shown(raw)}; give keys: {keys}."])
    try:
        found = model.model_validate(raw, context=context)
    except ValidationError as error:
        faults += [fault_of(each, known(each)) for each in error.errors(include_url=False)]
    if faults := faults + further(raw):
        raise KeysFaulty(faults)
    return found


def float_of(value: object) -> object:
    """Treats integers beyond any float as beyond every bound."""
    if type(value) is not int:
        return value
    if abs(value) < 2**1000:
        return float(value)
    return math.inf if value > 0 else -math.inf
