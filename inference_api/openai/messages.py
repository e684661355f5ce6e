"""Chat messages, as clients write them and as they keep answers in their history."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from inference_api.bodies.fields import Body, Unserved, fault
from inference_api.text.chat_prompts import Message


def _form_of_content(content: Any) -> str | None:
    if isinstance(content, str):
        return "<text>"
    return "<parts>" if isinstance(content, list) else None


class TextPart(Body):
    """A part of a content. Images, audio and files are parts of other types."""

    unserved: ClassVar[Unserved] = {"cache_control": ()}
    ignored: ClassVar[frozenset[str]] = frozenset({"annotations", "provider_specific_fields"})

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[TextPart], Field(min_length=1, fail_fast=True), Tag("<parts>")],
    Discriminator(
        _form_of_content,
        custom_error_type="content",
        custom_error_message="give a text or a list of parts of type text",
    ),
]


class ChatMessage(Body):
    """Fields that clients add to an answer in their history are accepted."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"annotations", "parsed", "provider_specific_fields"}
    )
    unserved: ClassVar[Unserved] = {
        "audio": (),
        "cache_control": (),
        "function_call": (),
        "images": ([],),
        "reasoning": ("",),
        "reasoning_content": ("",),
        "thinking_blocks": ([],),
        "tool_call_id": (),
        "tool_calls": ([],),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None
    refusal: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _one_text(self) -> "ChatMessage":
        if self.content is None and not self.refusal:
            raise fault("content", "is missing; give a text")
        if self.refusal and (self.content is not None or self.role != "assistant"):
            raise fault("refusal", "is an assistant's, in place of content; leave out one of them")
        return self

    def as_turn(self) -> Message:
        """Returns the message as chat templates take it: one text; a developer is a system."""
        content = self.refusal or "" if self.content is None else self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        named = {"name": self.name} if self.name else {}
        return {"role": role, "content": content, **named}


Messages = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]


def turns_of(messages: Sequence[ChatMessage]) -> list[Message]:
    return [message.as_turn() for message in messages]
