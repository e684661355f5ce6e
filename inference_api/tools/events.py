"""The nouns of tools: tools that clients offer, calls of models, and the events of an answer.

An answer is a sequence of events, whatever the model's format and whatever the API: thoughts, text,
and calls, which begin with a whole name and bring their arguments piece by piece. All are frozen:
any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Json = dict[str, Any]
Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers. `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: Json = field(default_factory=lambda: {"type": "object", "properties": {}})
    is_strict: bool = False  # the schema is enforced, or the request refused
    input_rule: str | None = None
    """The Lark grammar of an input that is written without JSON around it. A call of such a tool is
    the last thing in an answer."""

    def as_json(self) -> Json:
        """Returns the tool in OpenAI's format, which chat templates expect."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ChosenTools(NamedTuple):
    """The meaning of a `tool_choice`: whether to call, and which tools; no names means any."""

    mode: Mode = "auto"
    names: tuple[str, ...] = ()
    is_named: bool = False  # the client chose a single function to call
    allows_several: bool = True  # whether an answer may call more than once


class ToolUse(NamedTuple):
    """The tools of a request, and which of them the answer may or must call."""

    tools: tuple[Tool, ...] = ()
    choice: ChosenTools = ChosenTools("none")

    @property
    def callable_tools(self) -> Mapping[str, Tool]:
        """The tools that may be called, by name."""
        names = self.choice.names
        tools = () if self.choice.mode == "none" else self.tools
        return {tool.name: tool for tool in tools if not names or tool.name in names}

    @property
    def field(self) -> str:
        """The request's field that error messages name."""
        return "tool_choice" if self.choice.mode == "required" else "tools"


NO_TOOLS = ToolUse()


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Begins a call. `index` counts the answer's calls from 0; calls do not overlap."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """The next piece of a call's arguments, as the model wrote them. The joined pieces are the text
    of a JSON object, which is complete only with the last piece."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    index: int


Event = TextDelta | ThoughtDelta | CallStart | ArgumentsDelta | CallEnd
