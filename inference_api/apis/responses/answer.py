"""Writes the answers of `/v1/responses`, whole or as events."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NotRequired

from common.wire import WireDict
from inference_api.apis.chat import ChatAnswer
from inference_api.apis.events import named_event
from inference_api.apis.openai.logprobs import Logprobs
from inference_api.apis.openai.wire import ChatLogprob
from inference_api.apis.responses.body import ResponsesBody
from inference_api.apis.responses.tools import CalledTool, object_of
from inference_api.errors import HearthError
from inference_api.tools.parts import AnswerPart, PartDelta, PartEnd, PartEvent, PartStart, parts_of

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(WireDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Json]
    logprobs: list[ChatLogprob]


class OutputItem(WireDict):
    id: str
    status: Status


class OutputMessage(OutputItem):
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(WireDict):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(OutputItem):
    type: Literal["reasoning"]
    summary: list[Json]
    content: list[ReasoningText]


class OutputCall(OutputItem):
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str


class OutputCustomCall(OutputItem):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: NotRequired[str]
    input: str


class OutputShellCall(OutputItem):
    type: Literal["local_shell_call"]
    call_id: str
    action: Json


class OutputSearchCall(OutputItem):
    type: Literal["tool_search_call"]
    execution: Literal["client"]
    call_id: str
    arguments: Json


Item = (
    OutputMessage
    | OutputReasoning
    | OutputCall
    | OutputCustomCall
    | OutputShellCall
    | OutputSearchCall
)


class InputTokensDetails(WireDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(WireDict):
    reasoning_tokens: int


class InputTokens(WireDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseUsage(WireDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(WireDict):
    code: str
    message: str


class IncompleteDetails(WireDict):
    reason: Literal["max_output_tokens"]


class ResponseAnswer(WireDict):
    """The request's fields and the `output`; `usage` last, where token counters look."""

    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
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
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    output: list[Item]
    usage: NotRequired[ResponseUsage | None]


@dataclass(frozen=True, slots=True)
class ResponseWriter:
    """Writes one response. `created_at` is in seconds since 1970."""

    response_id: str
    model: str
    created_at: int
    body: ResponsesBody
    logprobs: Logprobs
    by_part: dict[int, list[ChatLogprob]] = field(default_factory=lambda: defaultdict(list))

    def complete(self, answers: Sequence[ChatAnswer]) -> ResponseAnswer:
        (answer,) = answers
        items: list[Item] = []
        for event in parts_of(answer.events()):
            list(self._events(event, answer, items))
        return self._complete(answer, items or [self._empty_message(answer)])

    def stream(self, answers: Sequence[ChatAnswer]) -> Iterator[bytes]:
        """Yields the events. An error is an event, and ends the response."""
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
            failure = {"code": error.code, "message": str(error)}
            yield event({"type": "error", **failure, "param": error.param})
            failed = self._response("failed", items) | {"error": failure}
            yield event({"type": "response.failed", "response": failed})
            raise
        ended = self._complete(answer, items or [self._empty_message(answer)])
        yield event({"type": f"response.{ended['status']}", "response": ended})

    def _events(self, event: PartEvent, answer: ChatAnswer, items: list[Item]) -> Iterator[Json]:
        """Yields the stream's events about a part, and adds an ended part to `items`."""
        part = event.part
        place = {"output_index": part.index}
        match event:
            case PartStart():
                item: Item = self._item(part, "in_progress")
                yield {"type": "response.output_item.added", **place, "item": item}
                if part.kind != "call":
                    yield self._part_event(part, "content_part.added", part=self._content(part))
            case PartDelta(_, text):
                called, (_, kind) = self._called(part), self._form(part)
                logprobs = self.logprobs.of_text(answer.generation.take_scored(), text)
                self.by_part[part.index] += logprobs
                if called.kind == "function" or called.is_raw:  # shown as the model writes it
                    more = {"logprobs": logprobs} if part.kind == "text" else {}
                    yield self._part_event(part, f"{kind}.delta", delta=text, **more)
            case PartEnd():
                yield from self._ends(part)
                item = self._item(part, _status(event, answer))
                items.append(item)
                yield {"type": "response.output_item.done", **place, "item": item}

    def _ends(self, part: AnswerPart) -> Iterator[Json]:
        called, (_, kind) = self._called(part), self._form(part)
        if part.kind != "call":
            yield self._part_event(part, f"{kind}.done", text=part.text)
            yield self._part_event(part, "content_part.done", part=self._content(part))
        elif called.kind == "custom":
            call_input = called.input_of(part.text)
            if not called.is_raw:
                yield self._part_event(part, f"{kind}.delta", delta=call_input)
            yield self._part_event(part, f"{kind}.done", input=call_input)
        elif called.kind == "function":
            yield self._part_event(part, f"{kind}.done", arguments=part.text)

    def _part_event(self, part: AnswerPart, kind: str, /, **more: Any) -> Json:
        """Returns an event about a part."""
        of_item = {"item_id": self._item_id(part), "output_index": part.index}
        of_part = of_item if part.kind == "call" else {**of_item, "content_index": 0}
        if kind.startswith("output_text"):
            more = {"logprobs": self.by_part[part.index]} | more  # clients expect them
        return {"type": f"response.{kind}", **of_part, **more}

    def _called(self, part: AnswerPart) -> CalledTool:
        return self.body.called_tools.get(part.name) or CalledTool(part.name)

    def _form(self, part: AnswerPart) -> tuple[str, str]:
        return _FORMS[self._called(part).kind if part.kind == "call" else part.kind]

    def _item_id(self, part: AnswerPart) -> str:
        prefix, _ = self._form(part)
        return f"{prefix}{self.response_id.removeprefix('resp_')}-{part.index}"

    def _item(self, part: AnswerPart, status: Status) -> Item:
        """Returns a part's item. A part that has just begun has no content yet."""
        item_id = self._item_id(part)
        content: list[Any] = [] if status == "in_progress" else [self._content(part)]
        if part.kind == "text":
            return {"id": item_id, "type": "message", "role": "assistant", "status": status,
                    "content": content}  # fmt: skip
        if part.kind == "thought":
            return {"id": item_id, "type": "reasoning", "status": status, "summary": [],
                    "content": content}  # fmt: skip
        return self._call(part, item_id, status)

    def _content(self, part: AnswerPart) -> OutputText | ReasoningText:
        if part.kind != "text":
            return {"type": "reasoning_text", "text": part.text}
        logprobs = self.by_part[part.index]
        return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": logprobs}

    def _call(self, part: AnswerPart, item_id: str, status: Status) -> Item:
        called, call_id = self._called(part), part.call_id
        if called.kind == "shell":
            action = {"type": "exec", "command": [], "env": {}} | object_of(part.text)
            return {"id": item_id, "type": "local_shell_call", "status": status,
                    "call_id": call_id, "action": action}  # fmt: skip
        if called.kind == "search":
            return {"id": item_id, "type": "tool_search_call", "status": status,
                    "execution": "client", "call_id": call_id,
                    "arguments": object_of(part.text)}  # fmt: skip
        item: OutputCall | OutputCustomCall
        if called.kind == "custom":
            call_input = "" if status == "in_progress" else called.input_of(part.text)
            item = {"id": item_id, "type": "custom_tool_call", "status": status,
                    "call_id": call_id, "name": called.name, "input": call_input}  # fmt: skip
        else:
            item = {"id": item_id, "type": "function_call", "status": status,
                    "call_id": call_id, "name": called.name, "arguments": part.text}  # fmt: skip
        if called.namespace is not None:
            item["namespace"] = called.namespace
        return item

    def _empty_message(self, answer: ChatAnswer) -> Item:
        """Returns the item of an answer without any text."""
        part = AnswerPart(0, "text")
        return self._item(part, "incomplete" if answer.is_cut else "completed")

    def _complete(self, answer: ChatAnswer, items: list[Item]) -> ResponseAnswer:
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

    def _response(self, status: ResponseStatus, items: list[Item]) -> ResponseAnswer:
        body = self.body
        shown = {"text", "tool_choice", "tools"}  # and no `input`, which may be megabytes
        dumped = body.model_dump(by_alias=True, exclude_none=True, include=shown, warnings=False)
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
            "text": {"format": {"type": "text"}} | dumped.get("text", {}),
            "tool_choice": dumped.get("tool_choice", "auto"),
            "tools": dumped.get("tools", []),
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "output": items,
            "usage": None,
        }


# For each kind of part or call, the prefix of its ids, and the name of events about its pieces.
_FORMS = {
    "text": ("msg_", "output_text"),
    "thought": ("rs_", "reasoning_text"),
    "function": ("fc_", "function_call_arguments"),
    "custom": ("ctc_", "custom_tool_call_input"),
    "shell": ("lsh_", ""),  # sent whole, as is a search
    "search": ("tsc_", ""),
}


def _status(end: PartEnd, answer: ChatAnswer) -> Status:
    return "incomplete" if end.is_last and answer.is_cut else "completed"
