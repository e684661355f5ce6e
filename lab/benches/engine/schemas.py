"""Twenty JSON schemas with bounded answers, for tests and benches of constrained answers."""

from typing import Any

NAME = {"type": "string", "maxLength": 8}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
COLOUR = {"enum": ["red", "green", "blue"]}


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def array(items: Any, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


SCHEMAS: tuple[dict[str, Any], ...] = (
    record(name=NAME, age=SMALL),
    record(colour=COLOUR),
    record(is_ready={"type": "boolean"}),
    record(numbers=array(SMALL)),
    record(point=record(x=SMALL, y=SMALL)),
    array(COLOUR),
    array(record(id=SMALL), most=2),
    {"enum": ["yes", "no", "maybe"]},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "boolean"},
    {"anyOf": [SMALL, COLOUR]},
    record(value={"anyOf": [SMALL, {"type": "null"}]}),
    record(kind={"const": "fox"}, legs=SMALL),
    record(date={"type": "string", "format": "date"}),
    record(code={"type": "string", "pattern": "^[A-Z]{3}[0-9]{2}$"}),
    record(matrix=array(array(SMALL, most=2), most=2)),
    record(a=record(b=record(c={"type": "boolean"}))),
    record(price={"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10}),
    {**record(name=NAME, nick=NAME), "required": ["name"]},
    {"$defs": {"leaf": record(n=SMALL)}, **record(left={"$ref": "#/$defs/leaf"})},
)
