"""Which objects of a JSON schema a grammar closes, and which it had better not."""

from typing import Any
from unittest.mock import Mock

import pytest

from inference_api.text import closed_objects
from inference_api.text.closed_objects import with_closed_objects

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}}
CLOSED_A = A | {"additionalProperties": False}
CLOSED_B = B | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (A, CLOSED_A),
        ({"properties": {}}, {"properties": {}, "additionalProperties": False}),
        ({"type": "array", "items": A}, {"type": "array", "items": CLOSED_A}),
        (
            {"prefixItems": [A, B], "items": False},
            {"prefixItems": [CLOSED_A, CLOSED_B], "items": False},
        ),
        ({"properties": {"x": A}}, {"properties": {"x": CLOSED_A}, "additionalProperties": False}),
        ({"additionalProperties": A}, {"additionalProperties": CLOSED_A}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED_A, {"type": "null"}]}),
        ({"allOf": [A]}, {"allOf": [CLOSED_A]}),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": A}},
            {"$ref": "#/$defs/a", "$defs": {"a": CLOSED_A}},
        ),
        ({"type": "string", "format": "uint32"}, {"type": "string"}),
        ({"type": "string", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        (
            {"items": {"type": "object", "propertyNames": {"pattern": "^a"}}},
            {"items": {"type": "object"}},
        ),
        (
            {"properties": {"properties": {"enum": [A]}}},  # a name, and a value: no schemas
            {"properties": {"properties": {"enum": [A]}}, "additionalProperties": False},
        ),
    ],
)
def test_closed(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    assert with_closed_objects(schema) == closed


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        A | {"additionalProperties": True},
        A | {"additionalProperties": {"type": "string"}},
        A | {"patternProperties": {"^x": {"type": "string"}}},
        A | {"unevaluatedProperties": False},
        A | {"required": ["a", "not named"]},
        A | {"anyOf": [{"required": ["a"]}, B]},
        {"allOf": [A, B]},
        {"allOf": [{"anyOf": [A, B]}, B]},
        {"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A}},
        {"allOf": [{"$ref": "#/$defs/x"}, B], "$defs": {"x": {"$ref": "#/$defs/a"}, "a": A}},
        B | {"$ref": "#/$defs/a", "$defs": {"a": A}},
        A | {"allOf": [{"$ref": "#/items/0"}, B], "items": [A]},
        {"const": A, "enum": [A], "default": A, "examples": [A]},
        {"properties": 5, "items": [1, None], "anyOf": {}, "$ref": 7, "required": 3},
    ],
)
def test_left_as_it_is(schema: dict[str, Any]) -> None:
    assert with_closed_objects(schema) == schema


def test_schema_itself_is_not_changed() -> None:
    schema: dict[str, Any] = {"properties": {"x": {"properties": {"y": {}}}}}
    with_closed_objects(schema)
    assert schema == {"properties": {"x": {"properties": {"y": {}}}}}


def test_a_chain_of_parts_takes_time_in_proportion_to_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visit = Mock(wraps=closed_objects._with_children)
    monkeypatch.setattr(closed_objects, "_with_children", visit)

    def num_visits(length: int) -> int:
        links = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}]} for n in range(length)}
        chain = {"allOf": [{"$ref": "#/$defs/a0"}, B], "$defs": {**links, f"a{length}": A}}
        visit.reset_mock()
        assert with_closed_objects(chain) == chain
        return visit.call_count

    assert num_visits(200) < 3 * num_visits(100)
