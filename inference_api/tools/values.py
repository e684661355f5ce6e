"""Bounds the depth of JSON values, and converts arguments in other notations to JSON. Pure."""

import ast
import json
from collections.abc import Collection
from typing import NoReturn

from inference_api.tools.events import Json

MAX_DEPTH = 100  # levels, so that values can be walked by recursion


def children(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def is_deeper_than(value: object, levels: int) -> bool:
    """Returns whether lists and objects nest in more levels. The value is the first."""
    level = [value]
    for _ in range(levels):
        level = [child for each in level for child in children(each)]
    return bool(level)


def python_arguments(text: str) -> str | None:
    """Returns `a=1, b="x"` as a JSON object; None if it is not keywords with literals."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        return json.dumps(
            {str(each.arg): ast.literal_eval(each.value) for each in call.keywords if each.arg},
            ensure_ascii=False,
            allow_nan=False,
        )
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def typed(value: str, name: str, schema: Json) -> str:
    """Returns an argument as JSON, by its schema. Text that is no JSON becomes a string."""
    value = value.removeprefix("\n").removesuffix("\n")
    properties = schema.get("properties")
    about = properties.get(name) if isinstance(properties, dict) else None
    is_text = isinstance(about, dict) and about.get("type") == "string"
    if not is_text:
        try:
            json.loads(value, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            is_text = True
    return json.dumps(value, ensure_ascii=False) if is_text else value.strip()


def refuse_constant(name: str) -> NoReturn:
    """Raises an error, for `json.loads`, which would read NaN and infinities."""
    raise ValueError(f"{name} is not JSON")
