"""Fields about tools and prompts: which tools may be called and which must be, and how messages
become a prompt."""

import re
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import AfterValidator, Field

from inference_api.apis.openai.messages import ChatMessage
from inference_api.text.chat_prompts import Ending
from inference_api.tools.events import ChosenTools, Mode, Tool
from inference_api.web.entries import ByForm, only
from inference_api.web.fields import Body, fault
from inference_api.web.json_object import shortened
from inference_api.web.tools import (
    MAX_TOOLS,
    Description,
    FunctionName,
    ToolBody,
    check_schema,
    tool_of,
)

MAX_OPTIONS = 32

# Template options that only the server may set.
RESERVED_OPTIONS = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation"}
    | {"documents", "max_length", "messages", "padding", "return_assistant_tokens_mask"}
    | {"return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation"}
    | {"additional_special_tokens", "raise_exception", "self", "strftime_now", "xml_tools"}
)
_OPTION = re.compile("[a-z][a-z0-9_]{0,63}")


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name in RESERVED_OPTIONS or name.endswith("_token") or not _OPTION.fullmatch(name):
            raise fault(shortened(name), "is not an option of a template; leave it out")
    return options


TemplateOptions = Annotated[
    dict[str, Any], Field(max_length=MAX_OPTIONS), AfterValidator(_check_options)
]


class Function(Body):
    name: FunctionName
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def check(self) -> None:
        check_schema("parameters", self.parameters)

    def as_tool(self, name: str | None = None) -> Tool:
        return tool_of(name or self.name, self.description, self.parameters, self.strict)


class FunctionTool(Body):
    advisory: ClassVar[frozenset[str]] = frozenset({"cache_control"})

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction

    def chosen_tools(self) -> ChosenTools:
        return ChosenTools("required", (self.function.name,), is_named=True)


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    def chosen_tools(self) -> ChosenTools:
        names = tuple(tool.function.name for tool in self.allowed_tools.tools)
        return ChosenTools(self.allowed_tools.mode, names)


def _form_of_choice(choice: Any) -> str | None:
    if isinstance(choice, str):
        return "mode"
    if not isinstance(choice, dict):
        return None
    return "allowed" if choice.get("type") == "allowed_tools" else "named"


BY_FORM_OF_CHOICE = ByForm(
    ("mode", "named", "allowed"),
    _form_of_choice,
    "tool_choice",
    "give none, auto, required, or an object that names a function",
)
ToolChoice = Annotated[Mode | NamedTool | AllowedToolsChoice, BY_FORM_OF_CHOICE]


class SaysChoice(Protocol):
    def chosen_tools(self) -> ChosenTools: ...


def choice_of(tool_choice: Mode | SaysChoice | None, allows_several: bool | None) -> ChosenTools:
    """Returns the meaning of a `tool_choice`, in any of its forms, and `parallel_tool_calls`."""
    if tool_choice is None or isinstance(tool_choice, str):
        chosen = ChosenTools(tool_choice or "auto")
    else:
        chosen = tool_choice.chosen_tools()
    return chosen._replace(allows_several=allows_several is not False)


class ConversationFields(ToolBody):
    """Fields that make a prompt of messages. `continue_final_message` continues the last one; it
    excludes `add_generation_prompt`."""

    tools: (
        Annotated[
            list[FunctionTool],
            Field(max_length=MAX_TOOLS, fail_fast=True),
            only(("function",), FunctionTool),
        ]
        | None
    ) = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def offered(self) -> list[Tool]:
        return [tool.function.as_tool() for tool in self.tools or ()]

    @property
    def choice(self) -> ChosenTools:
        return choice_of(self.tool_choice, self.parallel_tool_calls)

    @property
    def ending(self) -> Ending:
        if self.continue_final_message:
            return "open"
        return "closed" if self.add_generation_prompt is False else "answer"

    def check(self) -> None:
        super().check()
        if self.continue_final_message and self.add_generation_prompt:
            raise fault(
                "continue_final_message", "comes without add_generation_prompt; give one of the two"
            )


def check_open(message: ChatMessage) -> None:
    """Raises an error if the last message has no text to continue."""
    if message.content is None or message.tool_calls or message.role == "tool":
        raise fault(
            "continue_final_message",
            "goes on with a text, which the last message is not; end with a text and without calls",
        )
