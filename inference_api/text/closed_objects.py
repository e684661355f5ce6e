"""Closes the objects of JSON schemas: only named properties are allowed, unless a schema says
otherwise.

In JSON schema an object without `additionalProperties` is open, and a small model that may always
add one more property may never end. vLLM and llama.cpp close such objects, and so does this module.
An object that names no property, or that combines several schemas (`allOf`, properties beside
`anyOf`, ...), stays open, because closing one schema would forbid the properties of the others.

Pure: any thread. Schemas are at most `values.MAX_DEPTH` deep.
"""

import re
from collections.abc import Callable, Set
from typing import Any

Schema = dict[str, Any]
# Takes a schema, and whether it is one of several for the same value.
Visit = Callable[[Schema, bool], Schema]

_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "additionalProperties"})
_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf"})
# Keywords that say which properties a value may have.
_NAMING = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "$ref"}
    | {"allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"}
)
# In the specification `format` is only an annotation. The engine enforces these formats, and
# refuses schemas with others.
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
# The engine knows these, and refuses schemas that name others.
_DIALECT = re.compile(r"https?://json-schema\.org/draft(-0[4-7]|/20(19-09|20-12))/schema#?")
_NAMED_SCHEMA = re.compile(r"#(/(properties|\$defs|definitions)/[^/]+)?")  # others are not followed


def with_closed_objects(schema: Schema) -> Schema:
    """Returns a copy of the schema for grammars: with closed objects, and without unsupported
    formats, `propertyNames` and names of unknown dialects."""
    parts = _references_of_parts(schema)
    are_known = all(_NAMED_SCHEMA.fullmatch(reference) for reference in parts)

    def closed(schema: Schema, is_part: bool) -> Schema:
        copy = _with_children(schema, is_part, parts, closed)
        copy.pop("propertyNames", None)
        if not _DIALECT.fullmatch(str(copy.get("$schema"))):
            copy.pop("$schema", None)
        if copy.get("type") in (None, "string") and str(copy.get("format")) not in _FORMATS:
            copy.pop("format", None)
        if are_known and not is_part and _can_be_closed(schema):
            copy["additionalProperties"] = False
        return copy

    return closed(schema, "#" in parts)


def _can_be_closed(schema: Schema) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not (isinstance(properties, dict) and isinstance(required, list)):
        return False
    return _is_alone(schema, "properties") and {*map(str, required)} <= {*properties}


def _is_alone(schema: Schema, keyword: str) -> bool:
    """Returns whether no keyword but this one says which properties the value may have."""
    return not (_NAMING - {keyword}) & schema.keys()


def _references_of_parts(schema: Schema) -> set[str]:
    """Returns every `$ref` to a schema that is one of several for a value. What such a schema
    refers to is one, too; each is looked at twice at most, as chains of them may be long."""
    named: dict[str, dict[int, Schema]] = {"#": {id(schema): schema}}
    parts: set[str] = set()
    waiting: list[str] = []

    def collect(schema: Schema, is_part: bool) -> Schema:
        reference = schema.get("$ref")
        if isinstance(reference, str) and (is_part or not _is_alone(schema, "$ref")):
            waiting.extend({reference} - parts)
            parts.add(reference)
        for keyword in _BY_NAME & schema.keys():
            held = schema[keyword]
            for name, child in held.items() if isinstance(held, dict) else ():
                if isinstance(child, dict):
                    named.setdefault(f"#/{keyword}/{name}", {})[id(child)] = child
        return _with_children(schema, is_part, parts, collect)

    collect(schema, False)
    while waiting:
        for each in list(named.get(waiting.pop(), {}).values()):
            collect(each, True)
    return parts


def _with_children(schema: Schema, is_part: bool, parts: Set[str], visit: Visit) -> Schema:
    """Returns a copy with `visit` applied to each direct subschema."""

    def each(child: Any, child_is_part: bool) -> Any:
        return visit(child, child_is_part) if isinstance(child, dict) else child

    def of_keyword(keyword: str, held: Any) -> Any:
        if keyword in _BY_NAME and isinstance(held, dict):
            return {n: each(child, f"#/{keyword}/{n}" in parts) for n, child in held.items()}
        if keyword in _SAME_VALUE and isinstance(held, list):
            is_one = keyword != "allOf" or len(held) == 1
            shares = is_part or not (is_one and _is_alone(schema, keyword))
            return [each(child, shares) for child in held]
        if keyword in _ITEMS:
            return [each(c, False) for c in held] if isinstance(held, list) else each(held, False)
        return held

    return {keyword: of_keyword(keyword, held) for keyword, held in schema.items()}
