"""JSON schemas whose objects hold the named properties only, where they do not say otherwise.

JSON schema leaves an object without `additionalProperties` open, and a small model that may always
add one more property never ends. The engines of vLLM and llama.cpp close such objects, and so does
this. An object that names no property, or that is put together from several schemas (`allOf`,
properties beside `anyOf`, ...), stays as it is: closing a part would forbid what the others name.

Pure: any thread. Schemas are as deep as `values.MAX_DEPTH` at most.
"""

import re
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
# Takes a schema, and whether it is one of several that describe the same value.
Visit = Callable[[Schema, bool], Schema]

_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "additionalProperties"})
_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf"})
# Keywords that say which properties a value may have.
_NAMING = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "$ref"}
    | {"allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"}
)
# The specification has `format` as an annotation only. The engine enforces these, and refuses a
# schema with others.
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
_NAMED_SCHEMA = re.compile(r"#(/(properties|\$defs|definitions)/[^/]+)?")  # others are not followed


def with_closed_objects(schema: Schema) -> Schema:
    """A copy of the schema, for grammars: without formats that no engine knows, and without
    `propertyNames`, which none holds."""
    parts: frozenset[str] = frozenset()
    while (found := _references_of_parts(schema, parts)) != parts:
        parts = found  # what these refer to is a part too
    are_known = all(_NAMED_SCHEMA.fullmatch(reference) for reference in parts)

    def closed(schema: Schema, is_part: bool) -> Schema:
        copy = _with_children(schema, is_part, parts, closed)
        copy.pop("propertyNames", None)
        if copy.get("type") in (None, "string") and copy.get("format") not in _FORMATS:
            copy.pop("format", None)
        if are_known and not is_part and _can_be_closed(schema):
            copy["additionalProperties"] = False
        return copy

    return closed(schema, "#" in parts)


def _can_be_closed(schema: Schema) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not (isinstance(properties, dict) and isinstance(required, list)):
        return False
    return _is_alone(schema, "properties") and all(name in properties for name in required)


def _is_alone(schema: Schema, keyword: str) -> bool:
    """Nothing beside the keyword says which properties the value may have."""
    return not (_NAMING - {keyword}) & schema.keys()


def _references_of_parts(schema: Schema, parts: frozenset[str]) -> frozenset[str]:
    """Every `$ref` to a schema that is one of several of a value, given those known already."""
    found = set(parts)

    def collect(schema: Schema, is_part: bool) -> Schema:
        reference = schema.get("$ref")
        if isinstance(reference, str) and (is_part or not _is_alone(schema, "$ref")):
            found.add(reference)
        return _with_children(schema, is_part, parts, collect)

    collect(schema, "#" in parts)
    return frozenset(found)


def _with_children(schema: Schema, is_part: bool, parts: frozenset[str], visit: Visit) -> Schema:
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
