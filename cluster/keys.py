"""Reads the mappings of a YAML file into pydantic models, and reports every fault with its place,
value, bound and remedy. Pure: any thread.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from cluster.errors import ConfigFaulty

MAX_FAULTS = 100  # that are listed
MAX_SHOWN = 40  # characters of a value in a fault

# pydantic's types of error -> the message after the key's path.
SAID = {
    "missing": "is missing; give it",
    "extra_forbidden": "no such key; known: {known}",
    "greater_than_equal": "is {given}; give {ge} or more",
    "less_than_equal": "is {given}; give {le} or less",
    "literal_error": "is {given}; known: {expected}",
    "string_type": "is {given}; give a string; put it in quotes",
    "int_type": "is {given}; give an integer",
    "float_type": "is {given}; give a number",
    "finite_number": "is {given}; give a finite number",
    "bool_type": "is {given}; give true or false",
    "path_type": "is {given}; give a path",
    "dict_type": "is {given}; give a mapping of names",
    "model_type": "is {given}; give keys; known: {known}",
    "too_long": "has more than {max_length} entries; remove some",
    "string_too_long": "has more than {max_length} characters; shorten it",
}


class Keys(BaseModel):
    """Base of every mapping in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


KeysT = TypeVar("KeysT", bound=Keys)


def parse_keys(content: bytes, model: type[KeysT], parts: Mapping[str, type[Keys]]) -> KeysT:
    """The mapping of a file with this content. `parts`: the models of its inner mappings, by key.

    Raises ConfigFaulty with every fault.
    """
    try:
        loader = _Loader(content.decode())
        raw = loader.get_single_data()
    except UnicodeDecodeError as error:
        refuse([f"The file is not UTF-8 at byte {error.start}; save it as UTF-8."])
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        refuse([f"The file cannot be read as YAML: {' '.join(str(error).split())[:300]}."])
    if not isinstance(raw, dict):
        refuse([f"The file is {shown(raw)}; give keys: {', '.join(model.model_fields)}."])
    faults = loader.doubled
    try:
        found = model.model_validate(raw)
    except ValidationError as error:
        faults = faults + [_fault(each, model, parts) for each in error.errors(include_url=False)]
    if faults:
        refuse(faults)
    return found


def refuse(faults: list[str]) -> NoReturn:
    """Raises ConfigFaulty."""
    more = len(faults) - MAX_FAULTS
    told = faults[:MAX_FAULTS] + [f"And {more} more faults."] * (more > 0)
    raise ConfigFaulty("\n".join(f"  - {fault}" for fault in told))


def float_of(value: object) -> object:
    """Integers beyond any float are beyond every bound."""
    if type(value) is not int:
        return value
    return float(value) if abs(value) < 2**1000 else math.copysign(math.inf, value)


class _Loader(yaml.SafeLoader):
    """`doubled` has a fault for each duplicate key. Aliases are refused, because with them a short
    file can be a huge value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.doubled: list[str] = []

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(
                f"{event.start_mark}: aliases (*) are not allowed; write the value out"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                self.doubled.append(f"line {line}: {shown(key.value)} appears twice; remove one.")
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _fault(detail: ErrorDetails, model: type[Keys], parts: Mapping[str, type[Keys]]) -> str:
    path, said = detail["loc"], SAID.get(detail["type"])
    place = ".".join(shown(step).strip("'") for step in path)
    if said is None:
        return f"{place}: {detail['msg'].removeprefix('Value error, ')}."
    is_inside = len(path) > 1 or detail["type"] == "model_type"
    keys = parts.get(str(path[0]), model) if is_inside else model
    given = {"given": shown(detail["input"]), "known": ", ".join(keys.model_fields)}
    bounds = {
        name: f"{bound:.15g}" if isinstance(bound, float) else str(bound).replace("'", "")
        for name, bound in detail.get("ctx", {}).items()
    }
    return f"{place}: {said.format_map(given | bounds)}."


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(shown, list(names)[:20]))


def shown(value: object) -> str:
    """A value for a message: short and printable."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    try:
        text = ascii(value) if value is not None else "nothing"
    except ValueError:  # of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
