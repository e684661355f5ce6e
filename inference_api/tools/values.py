"""JSON values: how deep they are, and arguments that are not written in JSON, as JSON. Pure."""

import ast
import json
from collections.abc import Collection

from inference_api.tools.events import Json

MAX_DEPTH = 100  # levels; what walks a value afterwards may do so by recursion


def children(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def is_deeper_than(value: object, levels: int) -> bool:
    """Whether lists and objects in a value are nested in more levels, the value being the first."""
    level = [value]
    for _ in range(levels):
        level = [child for each in level for child in children(each)]
    return bool(level)


def python_arguments(text: str) -> str | None:
    """Returns `a=1, b="x"` as a JSON object; None where it is not keywords and literals."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        return json.dumps(
            {str(each.arg): ast.literal_eval(each.value) for each in call.keywords if each.arg},
            ensure_ascii=False,
        )
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def typed(value: str, name: str, schema: Json) -> str:
    """Returns an argument as JSON, by its schema: text stays text, and so does what is no JSON."""
    value = value.removeprefix("\n").removesuffix("\n")
    properties = schema.get("properties")
    about = properties.get(name) if isinstance(properties, dict) else None
    is_text = isinstance(about, dict) and about.get("type") == "string"
    if not is_text:
        try:
            json.loads(value, parse_constant=_refuse)
        except (ValueError, RecursionError):
            is_text = True
    return json.dumps(value, ensure_ascii=False) if is_text else value.strip()


def _refuse(name: str) -> None:
    raise ValueError(name)
