"""What all bodies with tools share: the bounds of a tool, and of all of them together."""

import json
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from pydantic import Field

from inference_api.bodies.fields import fault
from inference_api.bodies.json_object import is_deeper_than, shortened, widest_object
from inference_api.tools.events import Tool

MAX_TOOLS = 128
MAX_TOOL_BYTES = 256 * 1024  # of all tools, as JSON
MAX_SCHEMA_DEPTH = 64
MAX_MEMBERS = 500  # of an object in a schema: compiling optional ones takes the square of it
MAX_CALLS_OF_A_TURN = 128
OBJECT = {"type": "object"}

FunctionName = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
Description = Annotated[str, Field(max_length=16_384)]
CalledName = Annotated[str, Field(min_length=1, max_length=256)]  # perhaps by another server
CallId = Annotated[str, Field(max_length=256)]


def tool_of(
    name: str, description: str | None, schema: dict[str, Any] | None, strict: bool | None
) -> Tool:
    """Without a schema it has no arguments."""
    given = {} if schema is None else {"parameters": OBJECT | schema}
    return Tool(name, description, is_strict=bool(strict), **given)


def check_schema(field: str, schema: dict[str, Any] | None) -> None:
    """Raises the fault of a tool's schema, which `field` has."""
    if schema is not None and schema.get("type", "object") != "object":
        raise fault(field, "are no object's; give a schema of type object")
    if is_deeper_than(schema, MAX_SCHEMA_DEPTH):
        raise fault(field, f"is nested more than {MAX_SCHEMA_DEPTH} levels deep; flatten it")
    if (widest := widest_object(schema)) > MAX_MEMBERS:
        raise fault(field, f"have an object of {widest} members; give {MAX_MEMBERS} or fewer")


def check_tools(names: Sequence[str], schemas: Sequence[dict[str, Any] | None]) -> None:
    """Raises the fault of tools that are not told apart, or too large together."""
    for name in [name for name in names if names.count(name) > 1]:
        raise fault("tools", f"{shortened(name)!r} is there more than once; give each name once")
    num_bytes = len(json.dumps(schemas, ensure_ascii=False).encode())
    if num_bytes > MAX_TOOL_BYTES:
        raise fault(
            "tools", f"schemas of {num_bytes} bytes exceed {MAX_TOOL_BYTES}; give fewer or smaller"
        )


def check_choice(names: Sequence[str], chosen: Collection[str]) -> None:
    """Raises the fault of a `tool_choice` that asks for calls of what is not there."""
    if not names:
        raise fault("tool_choice", "asks for calls, and there are no tools; give tools")
    for name in chosen:
        if name not in names:
            known = shortened(", ".join(names))
            raise fault(
                "tool_choice", f"{shortened(name)!r} is none of the tools; give one of {known}"
            )
