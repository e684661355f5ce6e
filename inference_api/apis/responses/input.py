"""The `input` of `/v1/responses`: a text, or items, including the items of earlier answers."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from inference_api.apis.openai.messages import as_text
from inference_api.apis.responses.tools import SEARCH, SHELL, AnyTool, Tools, flat_name, flattened
from inference_api.tools.history import Message, assistant_turn, call_as_json
from inference_api.web.entries import ENCRYPTED, by_type, read_parts, text_or
from inference_api.web.fields import Body
from inference_api.web.tools import CalledName, CallId

# Fields of earlier answers' items that mean nothing to a model.
KEPT = frozenset({"created_by", "id", "phase", "status"})


# Items of earlier answers of other servers: about tools that are not served, content they keep.
FOREIGN = ENCRYPTED | {
    *("apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "computer_call"),
    *("computer_call_output", "file_search_call", "image_generation_call", "mcp_approval_request"),
    *("mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output"),
    *("shell_call", "shell_call_output", "web_search_call"),
}


class InputPart(Body):
    """One part of a message's content."""

    advisory: ClassVar[frozenset[str]] = frozenset({"prompt_cache_breakpoint"})
    of_answers: ClassVar[frozenset[str]] = frozenset({"annotations", "logprobs", "parsed"})

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


Content = Annotated[
    str | Annotated[list[InputPart], Field(fail_fast=True), read_parts(InputPart)],
    text_or("a list of parts of text", "content"),
]


class InputMessage(Body):
    of_answers: ClassVar[frozenset[str]] = KEPT

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class InputCall(Body):
    """A call of a tool. For the model it is a function call, whatever the tool's type."""

    advisory: ClassVar[frozenset[str]] = frozenset({"async", "caller"})
    of_answers: ClassVar[frozenset[str]] = KEPT | {"parsed_arguments"}

    call_id: CallId

    @abstractmethod
    def as_json(self) -> Message: ...


class FunctionCall(InputCall):
    type: Literal["function_call"]
    name: CalledName
    namespace: CalledName | None = None
    arguments: Annotated[str, BeforeValidator(as_text)]

    def as_json(self) -> Message:
        return call_as_json(self.call_id, flat_name(self.namespace, self.name), self.arguments)


class CustomToolCall(InputCall):
    type: Literal["custom_tool_call"]
    name: CalledName
    namespace: CalledName | None = None
    input: str

    def as_json(self) -> Message:
        arguments = json.dumps({"input": self.input}, ensure_ascii=False)
        return call_as_json(self.call_id, flat_name(self.namespace, self.name), arguments)


class LocalShellCall(InputCall):
    type: Literal["local_shell_call"]
    action: dict[str, Any]

    def as_json(self) -> Message:
        arguments = {key: value for key, value in self.action.items() if key != "type"}
        return call_as_json(self.call_id, SHELL, json.dumps(arguments, ensure_ascii=False))


class ToolSearchCall(InputCall):
    advisory: ClassVar[frozenset[str]] = frozenset({"execution"})

    type: Literal["tool_search_call"]
    arguments: dict[str, Any]

    def as_json(self) -> Message:
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return call_as_json(self.call_id, SEARCH, arguments)


class AdditionalTools(Body):
    """Further tools, which may be called from here on."""

    advisory: ClassVar[frozenset[str]] = frozenset({"execution", "role"})
    of_answers: ClassVar[frozenset[str]] = KEPT

    type: Literal["additional_tools"]
    tools: Tools


class ToolSearchOutput(AdditionalTools):
    type: Literal["tool_search_output"]  # type: ignore[assignment]
    call_id: CallId

    @property
    def output(self) -> str:
        names = ", ".join(tool.name for tool, _ in flattened(self.tools))
        return f"These tools can be called now: {names}" if names else "No tool was found."


class CallOutput(Body):
    advisory: ClassVar[frozenset[str]] = frozenset({"caller", "namespace"})
    of_answers: ClassVar[frozenset[str]] = KEPT | {"name"}

    type: Literal["function_call_output", "custom_tool_call_output", "local_shell_call_output"]
    call_id: CallId
    output: Content


class ReasoningItem(Body):
    """An answer's thoughts, or their summary if they were not sent."""

    advisory: ClassVar[frozenset[str]] = frozenset({"encrypted_content"})
    of_answers: ClassVar[frozenset[str]] = KEPT

    type: Literal["reasoning"]
    summary: list[InputPart] | None = None
    content: list[InputPart] | None = None


Item = (
    InputMessage
    | FunctionCall
    | CustomToolCall
    | LocalShellCall
    | CallOutput
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | ReasoningItem
)
NOTHING_KEPT = (
    ". Nothing is kept between calls: send items whole, as clients do that are told store: false"
)
AnyItem = Annotated[Item, by_type(Item, "item", NOTHING_KEPT)]
Input = Annotated[
    Annotated[str, Field(min_length=1)]
    | Annotated[
        list[AnyItem], Field(min_length=1, fail_fast=True), read_parts(InputMessage, FOREIGN)
    ],
    text_or("a list of items", "input"),
]


def tools_of(content: str | Sequence[Item]) -> list[AnyTool]:
    """Returns the tools that items add."""
    items = () if isinstance(content, str) else content
    return [tool for item in items if isinstance(item, AdditionalTools) for tool in item.tools]


def turns_of(content: str | Sequence[Item]) -> list[Message]:
    """Returns messages for a template. The assistant's consecutive items become one message."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    return list(_turns(content))


def _turns(items: Sequence[Item]) -> Iterator[Message]:
    assistant_items: list[Item] = []  # consecutive ones
    for item in items:
        if _is_assistants(item):
            assistant_items.append(item)
            continue
        yield from _turn_of(assistant_items)
        assistant_items = []
        if isinstance(item, InputMessage):
            role = "system" if item.role == "developer" else item.role
            yield {"role": role, "content": _text(item.content)}
        elif isinstance(item, CallOutput | ToolSearchOutput):
            yield {"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id}
    yield from _turn_of(assistant_items)


def _is_assistants(item: Item) -> bool:
    if isinstance(item, InputMessage):
        return item.role == "assistant"
    return isinstance(item, InputCall | ReasoningItem)


def _turn_of(items: Sequence[Item]) -> Iterator[Message]:
    if not items:
        return
    texts = [_text(item.content) for item in items if isinstance(item, InputMessage)]
    thoughts = [
        _text(item.content or item.summary or ())
        for item in items
        if isinstance(item, ReasoningItem)
    ]
    calls = [item.as_json() for item in items if isinstance(item, InputCall)]
    yield assistant_turn("\n".join(texts), "\n".join(thoughts), calls)


def _text(content: str | Sequence[InputPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
