"""The tools of `/v1/responses`: their names in a prompt, and how their calls are shown.

For the model every tool is a function, whatever its type.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from inference_api.apis.openai.tools import BY_FORM_OF_CHOICE, Function
from inference_api.request import ConstraintSpec
from inference_api.text.call_grammars import text_rule
from inference_api.text.client_grammars import CLIENT_GRAMMAR
from inference_api.tools.events import ChosenTools, Mode, Tool
from inference_api.web.constraints import ClientGrammar, Regex
from inference_api.web.entries import by_type, only
from inference_api.web.fields import Body, fault
from inference_api.web.tools import MAX_TOOLS, Description, FunctionName, tool_of

SHELL = "local_shell"
SEARCH = "tool_search"
_TEXT = {"type": "string"}
_INPUT = {"type": "object", "properties": {"input": _TEXT}, "required": ["input"]}
_COMMAND = {  # the action of a `local_shell_call`, as OpenAI documents it
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": _TEXT},
        "working_directory": _TEXT,
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}


def flat_name(namespace: str | None, name: str) -> str:
    """Returns the name in the prompt of a tool in a namespace."""
    return name if namespace is None else f"{namespace.removesuffix('__')}__{name}"


@dataclass(frozen=True, slots=True)
class CalledTool:
    """How calls of a tool are shown. For a custom tool with a grammar, the model writes the input
    itself. Without a grammar it writes JSON: `{"input": ...}`."""

    name: str
    kind: Literal["function", "custom", "shell", "search"] = "function"
    namespace: str | None = None
    is_raw: bool = False

    def input_of(self, written: str) -> str:
        """Returns the input of a custom tool."""
        try:
            parsed = written if self.is_raw else json.loads(written)["input"]
        except (ValueError, KeyError, TypeError, RecursionError):
            parsed = written
        return parsed if isinstance(parsed, str) else written


class FlatTool(Function):
    advisory: ClassVar[frozenset[str]] = frozenset(
        {"allowed_callers", "async", "defer_loading", "output_schema"}
    )

    type: Literal["function"]


class CustomFormat(Body):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: ClientGrammar | Regex | None = None

    def check(self) -> None:
        if self.type == "grammar" and None in (self.syntax, self.definition):
            raise fault("definition", "comes with syntax and type grammar; give all three")

    def rule(self) -> str | None:
        """Returns the grammar of the input; None if the input may be any text."""
        if self.type == "text" or self.definition is None:
            return None
        if self.syntax == "lark":
            return f"{CLIENT_GRAMMAR} {{\n{self.definition}\n}}"
        return text_rule(ConstraintSpec("tools", "regex", self.definition))


class CustomTool(Body):
    """A tool whose input is any text, or a text that matches a grammar."""

    advisory: ClassVar[frozenset[str]] = frozenset({"defer_loading"})

    type: Literal["custom"]
    name: FunctionName
    description: Description | None = None
    format: CustomFormat | None = None

    def as_tool(self, name: str | None = None) -> Tool:
        rule = None if self.format is None else self.format.rule()
        return Tool(name or self.name, self.description, _INPUT, input_rule=rule)


class ShellTool(Body):
    type: Literal["local_shell"]

    def as_tool(self) -> Tool:
        return Tool(SHELL, "Run a command on the user's machine.", _COMMAND)


class SearchTool(Body):
    """A search for further tools, which the client runs. Its output has the tools found."""

    type: Literal["tool_search"]
    execution: Literal["client"]
    description: Description | None = None
    parameters: dict[str, Any] | None = None

    def as_tool(self) -> Tool:
        return tool_of(SEARCH, self.description, self.parameters, strict=False)


PlainTool = Annotated[FlatTool | CustomTool, by_type(FlatTool | CustomTool)]


class Namespace(Body):
    """Tools from one source, such as an MCP server."""

    type: Literal["namespace"]
    name: FunctionName
    description: Description | None = None
    tools: Annotated[
        list[PlainTool],
        Field(max_length=MAX_TOOLS, fail_fast=True),
        only(("function", "custom"), FlatTool),
    ]


AnyTool = FlatTool | CustomTool | ShellTool | SearchTool | Namespace
Tools = Annotated[
    list[Annotated[AnyTool, by_type(AnyTool)]],
    Field(max_length=MAX_TOOLS, fail_fast=True),
    only(("function", "custom", SHELL, SEARCH, "namespace"), FlatTool),
]


def flattened(tools: Sequence[AnyTool]) -> Iterator[tuple[Tool, CalledTool]]:
    """Yields each tool as the model sees it, with how its calls are shown."""
    for tool in tools:
        if isinstance(tool, Namespace):
            for each in tool.tools:
                yield _flat_tool(each, tool.name)
        elif isinstance(tool, ShellTool):
            yield tool.as_tool(), CalledTool(SHELL, "shell")
        elif isinstance(tool, SearchTool):
            yield tool.as_tool(), CalledTool(SEARCH, "search")
        else:
            yield _flat_tool(tool, None)


def _flat_tool(tool: FlatTool | CustomTool, namespace: str | None) -> tuple[Tool, CalledTool]:
    plain = tool.as_tool(flat_name(namespace, tool.name))
    kind: Literal["function", "custom"] = "custom" if tool.type == "custom" else "function"
    return plain, CalledTool(tool.name, kind, namespace, is_raw=plain.input_rule is not None)


class NamedTool(Body):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    def chosen_tools(self) -> ChosenTools:
        return ChosenTools("required", (flat_name(self.namespace, self.name),), is_named=True)


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]

    def chosen_tools(self) -> ChosenTools:
        return ChosenTools(
            self.mode, tuple(name for tool in self.tools for name in tool.chosen_tools().names)
        )


ToolChoice = Annotated[Mode | NamedTool | AllowedTools, BY_FORM_OF_CHOICE]


def object_of(written: str) -> dict[str, Any]:
    """Returns the arguments that the model wrote, for calls that show them as an object."""
    try:
        parsed = json.loads(written)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {}
