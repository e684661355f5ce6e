"""The messages in a body of `/v1/messages`: new ones, and earlier answers sent back by clients."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from inference_api.tools.history import Message, assistant_turn, call_as_json
from inference_api.web.entries import FOREIGN_BLOCKS, by_type, read_parts, text_or
from inference_api.web.fields import Body, fault
from inference_api.web.tools import CalledName, CallId

# Accepted without effect: prefixes are cached anyway.
CACHED = frozenset({"cache_control"})


class TextBlock(Body):
    advisory: ClassVar[frozenset[str]] = CACHED
    of_answers: ClassVar[frozenset[str]] = frozenset({"citations", "parsed_output"})

    type: Literal["text"]
    text: str


Text = Annotated[
    str | Annotated[list[TextBlock], read_parts(TextBlock)],
    text_or("a list of blocks of type text", "text"),
]


class ToolReference(Body):
    """A tool with `defer_loading` that a search has found. It may be called from here on."""

    advisory: ClassVar[frozenset[str]] = CACHED

    type: Literal["tool_reference"]
    tool_name: CalledName

    @property
    def text(self) -> str:
        return f"The tool {self.tool_name} can be called now.\n"


ResultPart = Annotated[TextBlock | ToolReference, by_type(TextBlock | ToolReference)]
Result = Annotated[
    str | Annotated[list[ResultPart], read_parts(TextBlock, FOREIGN_BLOCKS)],
    text_or("a list of blocks of type text or tool_reference", "text"),
]


class ThinkingBlock(Body):
    """A thought. Its signature is not checked, because nothing depends on who wrote the thought."""

    advisory: ClassVar[frozenset[str]] = CACHED
    of_answers: ClassVar[frozenset[str]] = frozenset({"signature"})

    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(Body):
    advisory: ClassVar[frozenset[str]] = CACHED | {"toolset_name"}
    of_answers: ClassVar[frozenset[str]] = frozenset({"caller"})

    type: Literal["tool_use"]
    id: CallId
    name: CalledName
    input: dict[str, Any]

    def as_json(self) -> Message:
        return call_as_json(self.id, self.name, json.dumps(self.input, ensure_ascii=False))


class ToolResultBlock(Body):
    advisory: ClassVar[frozenset[str]] = CACHED | {"toolset_name"}

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Result | None = None
    is_error: bool | None = None

    @property
    def found_tools(self) -> Iterator[str]:
        for part in self.content or ():
            if isinstance(part, ToolReference):
                yield part.tool_name

    def as_turn(self) -> Message:
        text = text_of(self.content or "")
        content = f"Error: {text}" if self.is_error else text
        return {"role": "tool", "content": content, "tool_call_id": self.tool_use_id}


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
AnyBlock = Annotated[Block, by_type(Block, "block")]
Content = Annotated[
    str | Annotated[list[AnyBlock], Field(fail_fast=True), read_parts(TextBlock, FOREIGN_BLOCKS)],
    text_or("a list of blocks", "content"),
]


class InputMessage(Body):
    """A message. Of an earlier answer sent back whole, only role and content are used."""

    of_answers: ClassVar[frozenset[str]] = frozenset(
        {"container", "diagnostics", "id", "model", "stop_details", "stop_reason", "stop_sequence"}
        | {"type", "usage"}
    )

    role: Literal["user", "assistant", "system"]
    content: Content

    def check(self) -> None:
        misplaced_by_role = {"user": ThinkingBlock | ToolUseBlock, "assistant": ToolResultBlock}
        misplaced = misplaced_by_role.get(self.role, ThinkingBlock | ToolUseBlock | ToolResultBlock)
        for block in self.blocks:
            if isinstance(block, misplaced):
                raise fault("content", f"{block.type} is no block of role {self.role}")

    @property
    def blocks(self) -> Sequence[Block]:
        if isinstance(self.content, str):
            return [TextBlock(type="text", text=self.content)]
        return self.content

    @property
    def ends_with_text(self) -> bool:
        blocks = self.blocks
        is_called = any(isinstance(block, ToolUseBlock) for block in blocks)
        return bool(blocks) and isinstance(blocks[-1], TextBlock) and not is_called

    def turns(self) -> Iterator[Message]:
        """Yields a message for each result of a call, and one for each run of texts."""
        if self.role == "assistant":
            yield self._assistant_turn()
            return
        texts: list[str] = []
        for block in self.blocks:
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ToolResultBlock):
                yield from self._text_turn(texts)
                texts = []
                yield block.as_turn()
        yield from self._text_turn(texts)

    def _text_turn(self, texts: Sequence[str]) -> Iterator[Message]:
        if texts:
            yield {"role": self.role, "content": "".join(texts)}

    def _assistant_turn(self) -> Message:
        blocks = self.blocks
        text = "".join(each.text for each in blocks if isinstance(each, TextBlock))
        thoughts = "".join(each.thinking for each in blocks if isinstance(each, ThinkingBlock))
        calls = [each.as_json() for each in blocks if isinstance(each, ToolUseBlock)]
        return assistant_turn(text, thoughts, calls)


def text_of(text: str | Sequence[TextBlock | ToolReference]) -> str:
    return text if isinstance(text, str) else "".join(block.text for block in text)
