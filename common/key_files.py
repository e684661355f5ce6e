"""Reads files of plain YAML into pydantic models, with every fault at once. Any thread."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from common.faults import capped, fault_of
from common.plain_yaml import MAX_NODES, UnusableYaml, read_yaml


class Keys(BaseModel):
    """Base class of every mapping in a file. Immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


KeysT = TypeVar("KeysT", bound=Keys)


class KeysFaulty(Exception):
    """The file is wrong. `faults` has all faults, up to a bound."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = capped(faults)


def parse_keys(
    content: bytes,
    model: type[KeysT],
    further: Callable[[dict[str, Any]], list[str]] = lambda _: [],
    max_nodes: int = MAX_NODES,
    context: object = None,
) -> KeysT:
    """Returns the keys of a file with this content. `further` returns other faults; `context` is
    for validators. Raises KeysFaulty."""
    try:
        raw, faults = read_yaml(content.decode(), max_nodes)
    except UnicodeDecodeError as error:
        raise KeysFaulty(
            [f"The file is not UTF-8 at byte {error.start}; save it as UTF-8."]
        ) from None
    except UnusableYaml as error:
        raise KeysFaulty([f"The file cannot be read as YAML: {error}."]) from None
    try:
        found = model.model_validate(raw, context=context)
    except ValidationError as error:
        faults += [fault_of(each, model, "the file") for each in error.errors()]
    if isinstance(raw, dict):
        faults += further(raw)
    if faults:
        raise KeysFaulty(faults)
    return found


def float_of(value: object) -> object:
    """Returns integers as floats; infinity beyond the largest, so that every bound refuses it."""
    if type(value) is not int:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
