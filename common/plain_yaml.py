"""Reads the plain part of YAML, for untrusted files, also into pydantic models. Any thread.

It accepts lists, mappings with unique keys, strings, numbers, true, false and null. It refuses
features that can explode or surprise: aliases, tags, merged keys, several documents, deep nesting.
`plain_json` does the same for JSON.
"""

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from common.faults import capped, fault_of

MAX_DEPTH = 8
MAX_NODES = 20_000  # keys and values; each takes about 60 microseconds
MAX_TEXT = 4096  # characters of a key or value; Python refuses numbers of more than 4300 digits

_TEXT = "tag:yaml.org,2002:str"
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null")}


class UnusableYaml(Exception):
    """The text cannot be read. The message says why in a few words."""


def read_yaml(text: str, max_nodes: int = MAX_NODES) -> tuple[Any, list[str]]:
    """Returns the value, and a fault for each duplicate key. Raises UnusableYaml."""
    try:
        loader = _Loader(text, max_nodes)
        return loader.get_single_data(), loader.doubled
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise UnusableYaml(f"{where}{error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UnusableYaml(f"line {line}: {error.reason}") from None
    except (ValueError, ArithmeticError) as error:  # Python cannot parse a number-like text
        raise UnusableYaml(str(error)) from None


def plain_value(text: str, max_nodes: int = MAX_NODES) -> Any:
    """Returns the value. Raises ValueError, also for a duplicate key."""
    try:
        value, doubled = read_yaml(text, max_nodes)
    except UnusableYaml as error:
        raise ValueError(f"no plain YAML: {error}") from None
    if doubled:
        raise ValueError("; ".join(doubled))
    return value


def plain_json(content: bytes) -> Any:
    """Returns the value of a JSON text. Raises RecursionError, and ValueError, also for a duplicate
    key."""

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"{name[:40]!r} appears twice; remove one")
        return found

    return json.loads(content, object_pairs_hook=each_once)


class _Loader(yaml.SafeLoader):
    """Refuses all but plain YAML. `doubled` has a fault for each duplicate key."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in kinds if tag in _PLAIN]
        for first, kinds in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, max_nodes: int) -> None:
        super().__init__(text)
        self._max_nodes = max_nodes
        self.doubled: list[str] = []
        self._depth = 0
        self._num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._num_nodes += 1
        self._depth += 1
        if problem := self._problem(event):
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if key.tag != _TEXT:
                raise yaml.MarkedYAMLError(
                    problem="a key is not a string; put it in quotes", problem_mark=key.start_mark
                )
            if key.value in keys:
                line = key.start_mark.line + 1
                self.doubled.append(f"line {line}: {key.value[:40]!r} appears twice; remove one.")
            keys.add(key.value)
        return super().construct_mapping(node, deep)

    def _problem(self, event: Any) -> str | None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            return "anchors and aliases (& and *) are not allowed; write the value out"
        if event.tag is not None:
            return "tags (!) are not allowed; remove it, or put the text in quotes"
        if self._depth > MAX_DEPTH:
            return f"nested more than {MAX_DEPTH} levels deep; flatten it"
        if self._num_nodes > self._max_nodes:
            return f"more than {self._max_nodes} keys and values; remove some"
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT:
            return f"a text of {len(event.value)} characters; give at most {MAX_TEXT}"
        return None


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
        fault = f"The file is not UTF-8 at byte {error.start}; save it as UTF-8."
        raise KeysFaulty([fault]) from None
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
