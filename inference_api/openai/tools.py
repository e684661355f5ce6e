"""Tools in requests: what may be called, and what has to be."""

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from inference_api.bodies.fields import Body, Unserved, fault
from inference_api.bodies.json_object import is_deeper_than, shortened, widest_object
from inference_api.tools.events import NO_TOOLS, Mode, Tool, ToolUse

MAX_TOOLS = 128
MAX_TOOL_BYTES = 256 * 1024  # of all tools, as JSON
MAX_SCHEMA_DEPTH = 64
MAX_MEMBERS = 500  # of an object in a schema: compiling optional ones takes the square of it
OBJECT = {"type": "object"}
MAX_DESCRIPTION_CHARS = 16_384
MAX_OPTIONS = 32

FunctionName = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]


# What is the server's to say when it renders.
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
    description: str | None = Field(None, max_length=MAX_DESCRIPTION_CHARS)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _arguments_are_an_object(self) -> "Function":
        if self.parameters is not None and self.parameters.get("type", "object") != "object":
            raise fault("parameters", "are no object's; give a schema of type object")
        return self

    @model_validator(mode="after")
    def _not_too_deep_nor_wide(self) -> "Function":
        if is_deeper_than(self.parameters, MAX_SCHEMA_DEPTH):
            raise fault(
                "parameters", f"is nested more than {MAX_SCHEMA_DEPTH} levels deep; flatten it"
            )
        if (widest := widest_object(self.parameters)) > MAX_MEMBERS:
            raise fault(
                "parameters", f"have an object of {widest} members; give {MAX_MEMBERS} or fewer"
            )
        return self

    def as_tool(self) -> Tool:
        given = {} if self.parameters is None else {"parameters": OBJECT | self.parameters}
        return Tool(self.name, self.description, is_strict=bool(self.strict), **given)


class FunctionTool(Body):
    unserved: ClassVar[Unserved] = {"cache_control": ()}

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _form_of_choice(choice: Any) -> str | None:
    if isinstance(choice, str):
        return "<mode>"
    if not isinstance(choice, dict):
        return None
    return "<allowed>" if choice.get("type") == "allowed_tools" else "<named>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedTool, Tag("<named>")]
    | Annotated[AllowedToolsChoice, Tag("<allowed>")],
    Discriminator(
        _form_of_choice,
        custom_error_type="tool_choice",
        custom_error_message="give none, auto, required, or an object that names a function",
    ),
]


class ToolFields(Body):
    """What a body of a chat may say of tools."""

    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _tools_are_few_and_told_apart(self) -> "ToolFields":
        names = [tool.function.name for tool in self.tools or ()]
        for name in {name for name in names if names.count(name) > 1}:
            raise fault(
                "tools", f"{shortened(name)!r} is there more than once; give each name once"
            )
        given = [tool.function.parameters for tool in self.tools or ()]
        num_bytes = len(json.dumps(given, ensure_ascii=False).encode())
        if num_bytes > MAX_TOOL_BYTES:
            raise fault(
                "tools",
                f"schemas of {num_bytes} bytes exceed {MAX_TOOL_BYTES}; give fewer or smaller",
            )
        return self

    @model_validator(mode="after")
    def _choice_is_of_the_tools(self) -> "ToolFields":
        names = [tool.function.name for tool in self.tools or ()]
        if self.tool_choice in (None, "none", "auto") or not isinstance(
            self.tool_choice, Body | str
        ):
            return self
        if not names:
            raise fault("tool_choice", "asks for calls, and there are no tools; give tools")
        for name in self._chosen_names:
            if name not in names:
                known = shortened(", ".join(names))
                raise fault(
                    "tool_choice", f"{shortened(name)!r} is none of the tools; give one of {known}"
                )
        return self

    @property
    def _chosen_names(self) -> list[str]:
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return [choice.function.name]
        if isinstance(choice, AllowedToolsChoice):
            return [tool.function.name for tool in choice.allowed_tools.tools]
        return [tool.function.name for tool in self.tools or ()]

    def tool_use(self) -> ToolUse:
        choice = self.tool_choice or "auto"
        if not self.tools or choice == "none":
            return NO_TOOLS
        mode: Mode = "required"
        if isinstance(choice, AllowedToolsChoice):
            mode = choice.allowed_tools.mode
        elif isinstance(choice, str):
            mode = choice
        return ToolUse(
            tools=tuple(tool.function.as_tool() for tool in self.tools),
            mode=mode,
            callable_names=frozenset(self._chosen_names),
            is_named=isinstance(choice, NamedTool),
            allows_several=self.parallel_tool_calls is not False,
            field="tool_choice" if mode == "required" else "tools",
        )
