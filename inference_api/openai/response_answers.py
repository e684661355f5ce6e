"""The answers of `/v1/responses`, whole or as events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, NotRequired

from inference_api.errors import HearthError
from inference_api.generation.chat import ChatAnswer
from inference_api.generation.named_events import named_event
from inference_api.openai.answers import Answer
from inference_api.openai.responses import ResponsesBody
from inference_api.tools.parts import Part, PartDelta, PartEnd, PartEvent, PartStart, parts_of

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answer):
    type: Literal["output_text"]
    text: str
    annotations: list[Json]


class OutputMessage(Answer):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class ReasoningText(Answer):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(Answer):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[Json]
    content: list[ReasoningText]


class OutputCall(Answer):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str


Item = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(Answer):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Answer):
    reasoning_tokens: int


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Answer):
    code: str
    message: str


class IncompleteDetails(Answer):
    reason: Literal["max_output_tokens"]


class ResponseAnswer(Answer):
    """What was asked, and `output`. `usage` is last: who counts tokens reads it at the end."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: Json
    store: bool
    temperature: float
    text: Json
    tool_choice: str | Json
    tools: list[Json]
    top_p: float
    truncation: Literal["disabled"]
    output: list[Item]
    usage: NotRequired[ResponseUsage | None]


@dataclass(frozen=True, slots=True)
class ResponseWriter:
    """Of one response. `created_at`: seconds since 1970."""

    response_id: str
    model: str
    created_at: int
    body: ResponsesBody

    def whole(self, answers: Sequence[ChatAnswer]) -> ResponseAnswer:
        (answer,) = answers
        ends = [each for each in parts_of(answer.events()) if isinstance(each, PartEnd)]
        items = [self._item(end.part, _status(end, answer)) for end in ends]
        return self._ended(answer, items or [self._nothing(answer)])

    def stream(self, answers: Sequence[ChatAnswer]) -> Iterator[bytes]:
        """Yields the events. An error is an event and the end of the response."""
        (answer,) = answers
        numbers = count()

        def event(content: Json) -> bytes:
            return named_event({**content, "sequence_number": next(numbers)})

        items: list[Item] = []
        yield event({"type": "response.created", "response": self._response("in_progress", [])})
        yield event({"type": "response.in_progress", "response": self._response("in_progress", [])})
        try:
            for part_event in parts_of(answer.events()):
                yield from map(event, self._events(part_event, answer, items))
        except HearthError as error:
            told = {"code": error.code, "message": str(error)}
            yield event({"type": "error", **told, "param": error.param})
            failed = self._response("failed", items) | {"error": told}
            yield event({"type": "response.failed", "response": failed})
            raise
        ended = self._ended(answer, items or [self._nothing(answer)])
        yield event({"type": f"response.{ended['status']}", "response": ended})

    def _events(self, event: PartEvent, answer: ChatAnswer, items: list[Item]) -> Iterator[Json]:
        """Yields what a stream tells of a part; what has ended is added to the items."""
        part = event.part
        place = {"output_index": part.index}
        of_item = {"item_id": self._item_id(part), **place}
        of_part = of_item if part.kind == "call" else {**of_item, "content_index": 0}
        match event:
            case PartStart():
                item: Item = self._item(part, "in_progress")
                yield {"type": "response.output_item.added", **place, "item": item}
                if part.kind != "call":
                    shown = _content(part)
                    yield {"type": "response.content_part.added", **of_part, "part": shown}
            case PartDelta(_, text):
                yield {
                    "type": f"{_KINDS[part.kind]}.delta",
                    **of_part,
                    "delta": text,
                    **_more(part),
                }
            case PartEnd():
                name = "arguments" if part.kind == "call" else "text"
                yield {
                    "type": f"{_KINDS[part.kind]}.done", **of_part, name: part.text, **_more(part)
                }  # fmt: skip
                if part.kind != "call":
                    shown = _content(part)
                    yield {"type": "response.content_part.done", **of_part, "part": shown}
                item = self._item(part, _status(event, answer))
                items.append(item)
                yield {"type": "response.output_item.done", **place, "item": item}

    def _item_id(self, part: Part) -> str:
        return f"{_PREFIXES[part.kind]}{self.response_id.removeprefix('resp_')}-{part.index}"

    def _item(self, part: Part, status: Status) -> Item:
        """A part that has just begun has no content yet."""
        item_id = self._item_id(part)
        has_content = status != "in_progress"
        if part.kind == "text":
            shown: list[OutputText] = [_output_text(part.text)] if has_content else []
            return {"id": item_id, "type": "message", "role": "assistant", "status": status,
                    "content": shown}  # fmt: skip
        if part.kind == "thought":
            thought: ReasoningText = {"type": "reasoning_text", "text": part.text}
            return {"id": item_id, "type": "reasoning", "status": status, "summary": [],
                    "content": [thought] if has_content else []}  # fmt: skip
        return {"id": item_id, "type": "function_call", "status": status, "call_id": part.call_id,
                "name": part.name, "arguments": part.text}  # fmt: skip

    def _nothing(self, answer: ChatAnswer) -> Item:
        """What an answer without a token of text consists of."""
        part = Part(0, "text")
        return self._item(part, "incomplete" if answer.is_cut else "completed")

    def _ended(self, answer: ChatAnswer, items: list[Item]) -> ResponseAnswer:
        response = self._response("incomplete" if answer.is_cut else "completed", items)
        if answer.is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        record = answer.generation.record()
        response["usage"] = {
            "input_tokens": record.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": record.reused_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": record.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": answer.thought_tokens},
            "total_tokens": record.prompt_tokens + record.completion_tokens,
        }
        return response

    def _response(
        self,
        status: Literal["in_progress", "completed", "incomplete", "failed"],
        items: list[Item],
    ) -> ResponseAnswer:
        body = self.body
        asked = body.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "model": self.model,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.effort, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}} | asked.get("text", {}),
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "output": items,
            "usage": None,
        }


_PREFIXES = {"text": "msg_", "thought": "rs_", "call": "fc_"}
_KINDS = {
    "text": "response.output_text",
    "thought": "response.reasoning_text",
    "call": "response.function_call_arguments",
}


def _status(end: PartEnd, answer: ChatAnswer) -> Status:
    return "incomplete" if end.is_last and answer.is_cut else "completed"


def _output_text(text: str) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": []}


def _content(part: Part) -> OutputText | ReasoningText:
    if part.kind == "text":
        return _output_text(part.text)
    return {"type": "reasoning_text", "text": part.text}


def _more(part: Part) -> Json:
    """What clients want of a text beside it."""
    return {"logprobs": []} if part.kind == "text" else {}
