"""Fields about tools that all APIs share: their bounds, and which tools may be called."""

import json
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from pydantic import Field

from inference_api.tools.events import NO_TOOLS, ChosenTools, Tool, ToolUse
from inference_api.web.constraints import schema_fault
from inference_api.web.fields import Body, fault
from inference_api.web.json_object import shortened

MAX_TOOLS = 128
MAX_TOOL_BYTES = 256 * 1024  # size of all tools together, as JSON
MAX_CALLS_OF_A_TURN = 128
OBJECT = {"type": "object"}

FunctionName = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,128}$")]  # Anthropic's bound
Description = Annotated[str, Field(max_length=16_384)]
CalledName = Annotated[str, Field(min_length=1, max_length=256)]  # another server may have called
CallId = Annotated[str, Field(max_length=16_384)]  # gateways put signatures of thoughts there


class ToolBody(Body):
    """Base class of bodies with tools, each in its API's format."""

    @property
    @abstractmethod
    def offered(self) -> Sequence[Tool]: ...

    @property
    @abstractmethod
    def choice(self) -> ChosenTools: ...

    def check(self) -> None:
        super().check()
        check_tools(self.offered)
        names = [tool.name for tool in self.offered]
        if self.choice.mode == "required" or self.choice.names:
            check_choice(names, self.choice.names or names)

    def tool_use(self) -> ToolUse:
        tools, choice = tuple(self.offered), self.choice
        return ToolUse(tools, choice) if tools and choice.mode != "none" else NO_TOOLS


def tool_of(
    name: str, description: str | None, schema: dict[str, Any] | None, strict: bool | None
) -> Tool:
    """Returns a tool. Without a schema it takes no arguments."""
    parameters = Tool(name).parameters if schema is None else OBJECT | schema
    return Tool(name, description, parameters, bool(strict))


def check_schema(field: str, schema: dict[str, Any] | None) -> None:
    """Raises an error about `field` if a tool's schema is out of bounds."""
    if schema is not None and schema.get("type", "object") != "object":
        raise fault(field, "are no object's; give a schema of type object")
    if schema is not None and (found := schema_fault(schema)):
        raise fault(field, found)


def check_tools(tools: Sequence[Tool]) -> None:
    """Raises an error if two tools have the same name, or all are too large together."""
    if len(tools) > MAX_TOOLS:
        raise fault("tools", f"are {len(tools)} in all; give {MAX_TOOLS} or fewer")
    names = [tool.name for tool in tools]
    schemas = [(tool.parameters, tool.input_rule) for tool in tools]
    for name in [name for name in names if names.count(name) > 1]:
        raise fault("tools", f"{shortened(name)!r} is there more than once; give each name once")
    num_bytes = len(json.dumps(schemas, ensure_ascii=False).encode())
    if num_bytes > MAX_TOOL_BYTES:
        raise fault(
            "tools", f"schemas of {num_bytes} bytes exceed {MAX_TOOL_BYTES}; give fewer or smaller"
        )


def check_choice(names: Sequence[str], chosen: Collection[str]) -> None:
    """Raises an error if a `tool_choice` names tools that are not offered."""
    if not names:
        raise fault(
            "tool_choice",
            "asks for calls, and there are no tools of a type that is served; give functions",
        )
    for name in chosen:
        if name not in names:
            offered = shortened(", ".join(names))
            raise fault(
                "tool_choice",
                f"{shortened(name)!r} is none of the tools; give one of {offered}",
            )
