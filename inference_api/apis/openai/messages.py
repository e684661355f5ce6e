"""The messages of a chat body: new ones, and earlier answers sent back by clients."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from inference_api.tools.history import Message, call_as_json
from inference_api.web.entries import FOREIGN_BLOCKS, read_parts, text_or
from inference_api.web.fields import Body, Unserved, fault
from inference_api.web.tools import MAX_CALLS_OF_A_TURN, CalledName, CallId

# Parts of other servers' answers. Thoughts are `reasoning_content` here.
FOREIGN = FOREIGN_BLOCKS | {"reasoning", "thinking"}


class TextPart(Body):
    """One part of a message's content."""

    advisory: ClassVar[frozenset[str]] = frozenset({"cache_control", "prompt_cache_breakpoint"})
    of_answers: ClassVar[frozenset[str]] = frozenset({"annotations", "provider_specific_fields"})

    type: Literal["text", "input_text", "output_text"]
    text: str


def as_text(arguments: Any) -> Any:
    """Returns a call's arguments as text; some clients send them back as an object."""
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


Content = Annotated[
    str | Annotated[list[TextPart], Field(fail_fast=True), read_parts(TextPart, FOREIGN)],
    text_or("a list of parts of type text", "content"),
]


class CalledFunction(Body):
    of_answers: ClassVar[frozenset[str]] = frozenset({"parsed_arguments"})

    name: CalledName
    arguments: Annotated[str, BeforeValidator(as_text)] = ""


class ToolCall(Body):
    of_answers: ClassVar[frozenset[str]] = frozenset({"extra_content", "index"}) | {
        "provider_specific_fields"
    }

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction

    def as_json(self) -> Message:
        return call_as_json(self.id, self.function.name, self.function.arguments)


class ChatMessage(Body):
    """A message of any role.

    Fields that clients add to earlier answers are accepted. So is an answer without text, which
    clients assemble from a stream that had none, and an empty list of parts, which LangChain and
    MCP send for a call or a tool's result without text.
    """

    advisory: ClassVar[frozenset[str]] = frozenset(
        {"audio", "cache_control", "images", "metadata", "reasoning_details", "thinking_blocks"}
    )
    of_answers: ClassVar[frozenset[str]] = frozenset(
        {"annotations", "id", "parsed", "provider_specific_fields", "timestamp"}
    )
    unserved: ClassVar[Unserved] = {"function_call": ()}

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    refusal: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: (
        Annotated[list[ToolCall], Field(max_length=MAX_CALLS_OF_A_TURN, fail_fast=True)] | None
    ) = None
    tool_call_id: CallId | None = None

    def check(self) -> None:
        if self.content is None and self.role != "assistant":
            raise fault("content", "is missing; give a text")
        if self.content == [] and self.role not in ("assistant", "tool"):
            raise fault("content", "is an empty list; give a text or one part or more")
        if self.refusal and (self.content or self.role != "assistant"):
            raise fault("refusal", "is an assistant's, in place of content; leave out one of them")
        for field in ("tool_calls", "reasoning_content", "reasoning"):
            if getattr(self, field) and self.role != "assistant":
                raise fault(field, "is an assistant's; leave it out")
        if self.role == "tool" and self.tool_call_id is None:
            raise fault("tool_call_id", "is missing; give the id of the call")
        if self.role != "tool" and self.tool_call_id is not None:
            raise fault("tool_call_id", "is of messages of role tool; leave it out")

    def as_turn(self) -> Message:
        """Returns the message for chat templates: one text, and role `system` for `developer`."""
        content = self.content or self.refusal or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        thoughts = self.reasoning_content or self.reasoning
        fields: Message = {
            "name": self.name,
            "tool_calls": [call.as_json() for call in self.tool_calls or ()],
            "reasoning_content": thoughts,
        }
        filled = {name: value for name, value in fields.items() if value}
        of_result = {"tool_call_id": self.tool_call_id} if role == "tool" else {}
        return {"role": role, "content": content, **filled, **of_result}


Messages = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
