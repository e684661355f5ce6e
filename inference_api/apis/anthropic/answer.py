"""Writes the answers of `/v1/messages`, whole or as events, in Anthropic's format."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

from common.errors import messages_error
from common.wire import WireDict
from inference_api.apis.chat import ChatAnswer
from inference_api.apis.events import named_event
from inference_api.errors import HearthError
from inference_api.tools.parts import AnswerPart, PartDelta, PartEnd, PartEvent, PartStart, parts_of

Json = dict[str, Any]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class Text(WireDict):
    type: Literal["text"]
    text: str


class Thinking(WireDict):
    """A thought. `signature` is empty, because thoughts need none when clients send them back."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUse(WireDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


Block = Text | Thinking | ToolUse


class Usage(WireDict):
    """Token counts. `input_tokens` counts the whole prompt, cached tokens included."""

    input_tokens: int
    output_tokens: int


class MessageAnswer(WireDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage


class TokenCount(WireDict):
    input_tokens: int


@dataclass(frozen=True, slots=True)
class MessageWriter:
    """Writes one answer."""

    request_id: str
    model: str

    def complete(self, answers: Sequence[ChatAnswer]) -> MessageAnswer:
        (answer,) = answers
        ends = [each for each in parts_of(answer.events()) if isinstance(each, PartEnd)]
        message = self._message(_usage(answer, answer.generation.completion_tokens))
        message["content"] = [_block(end.part) for end in ends]
        message["stop_reason"], message["stop_sequence"] = _stop(answer)
        return message

    def stream(self, answers: Sequence[ChatAnswer]) -> Iterator[bytes]:
        """Yields the events. An error is one of them."""
        (answer,) = answers
        message = self._message(_usage(answer, 0))
        yield named_event({"type": "message_start", "message": message})
        try:
            for part_event in parts_of(answer.events()):
                yield from map(named_event, _events(part_event))
        except HearthError as error:
            yield named_event(messages_error(error.status, str(error), self.request_id))
            raise
        reason, sequence = _stop(answer)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = _usage(answer, answer.generation.completion_tokens)
        yield named_event({"type": "message_delta", "delta": delta, "usage": usage})
        yield named_event({"type": "message_stop"})

    def _message(self, usage: Usage) -> MessageAnswer:
        """Returns the message without its content."""
        return {
            "id": f"msg_{self.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def _usage(answer: ChatAnswer, output_tokens: int) -> Usage:
    return {"input_tokens": len(answer.generation.prompt_tokens), "output_tokens": output_tokens}


def _stop(answer: ChatAnswer) -> tuple[StopReason, str | None]:
    sequence = answer.generation.stop_string
    if answer.is_cut:
        return "max_tokens", None
    if sequence is not None:
        return "stop_sequence", sequence
    return ("tool_use" if answer.has_calls else "end_turn"), None


def _events(event: PartEvent) -> Iterator[Json]:
    part = event.part
    match event:
        case PartStart():
            yield {
                "type": "content_block_start",
                "index": part.index,
                "content_block": _empty_block(part),
            }
        case PartDelta(_, text):
            yield {"type": "content_block_delta", "index": part.index, "delta": _delta(part, text)}
        case PartEnd():
            yield {"type": "content_block_stop", "index": part.index}


def _empty_block(part: AnswerPart) -> Block:
    if part.kind == "call":
        return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
    return _block(part)


def _delta(part: AnswerPart, text: str) -> Json:
    if part.kind == "text":
        return {"type": "text_delta", "text": text}
    if part.kind == "thought":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "input_json_delta", "partial_json": text}


def _block(part: AnswerPart) -> Block:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "thought":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": _input(part.text)}


def _input(arguments: str) -> Json:
    """Returns a call's arguments as an object, completed if the answer was cut inside them.

    Arguments that are no object are wrapped in one, under the key that Anthropic's documentation of
    streamed inputs proposes.
    """
    try:
        parsed = from_json(arguments, allow_partial="trailing-strings", allow_inf_nan=False)
        json.dumps(parsed)  # fails for integers of thousands of digits
    except (ValueError, RecursionError):
        parsed = None
    if arguments and not isinstance(parsed, dict):
        return {"INVALID_JSON": arguments}
    return parsed or {}
