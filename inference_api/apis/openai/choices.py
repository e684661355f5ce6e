"""Writes the answers of OpenAI's two generation routes, whole or streamed."""

from collections.abc import Iterator, Sequence
from typing import Any

from inference_api.apis.chat import ChatAnswer
from inference_api.apis.choosing import ChosenModel
from inference_api.apis.events import dumped, sse
from inference_api.apis.openai.bodies import ChatBody, GenerationBody, StreamOptions
from inference_api.apis.openai.logprobs import Logprobs, LogprobsAnswer, first_of, prompt_logprobs
from inference_api.apis.openai.wire import AssistantMessage, PromptTokensDetails, Usage
from inference_api.core.record import GenerationRecord
from inference_api.errors import HearthError
from inference_api.request import FinishReason, ScoredToken
from inference_api.text.tokens import Tokenizer
from inference_api.tools.events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    TextDelta,
    ThoughtDelta,
)
from inference_api.tools.parts import WholeAnswer, whole_answer

DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


def _message(answer: WholeAnswer) -> AssistantMessage:
    message: AssistantMessage = {"role": "assistant", "content": answer.text}
    if answer.thoughts:
        message["reasoning_content"] = answer.thoughts
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in answer.calls
        ]
    return message


def _delta(event: Event | None) -> Json:
    """Returns an event's delta. Clients concatenate all its texts except `type`, so role, id and
    name are sent once."""
    match event:
        case TextDelta(text):
            return {"content": text}
        case ThoughtDelta(text):
            return {"reasoning_content": text}
        case CallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return {}


class Choice:
    """One choice: a generation, its echo and its log probabilities."""

    def __init__(
        self, index: int, answer: ChatAnswer, body: GenerationBody, tokenizer: Tokenizer
    ) -> None:
        prompt_tokens = answer.generation.prompt_tokens
        self.index = index
        self.answer = answer
        self._echo = tokenizer.decode(prompt_tokens) if body.wants_echo else ""
        self._is_chat = isinstance(body, ChatBody)
        self._is_named_call = isinstance(body, ChatBody) and body.tool_use().choice.is_named
        self._logprobs: Logprobs | None = None
        self._ahead: list[ScoredToken] = []  # scored prompt tokens, which come before the answer's
        if body.num_logprobs is not None:
            scored = answer.generation.scored_prompt if body.wants_echo else ()
            self._ahead = first_of(scored, body.num_logprobs)
            kept = answer.generation.kept_token_ids
            self._logprobs = Logprobs(tokenizer, self._is_chat, len(self._ahead), kept)
        self._num_chars = 0

    @property
    def finish_reason(self) -> str:
        """Why the choice ended, once it has."""
        reason = self.answer.generation.record().finish_reason
        calls = reason == FinishReason.STOP and self.answer.has_calls
        return "tool_calls" if calls and not self._is_named_call else reason

    def pieces(self) -> Iterator[tuple[Event | None, LogprobsAnswer | None]]:
        """Yields events with log probabilities as they come. The last pair may lack an event.
        Raises HearthError."""
        if self._echo:
            yield TextDelta(self._echo), None
        for events in self._counted():
            shown = [event for event in events if not isinstance(event, CallEnd)]
            for number, event in enumerate(shown):
                yield event, None if number else self._next_logprobs()
        if self._logprobs is not None and (rest := self._take_scored()):
            yield None, self._shaped(rest)

    def delta(self, event: Event | None, is_first: bool) -> Json:
        """Returns an event's part of a chunk; `event` is None if the chunk has something else."""
        if not self._is_chat:
            return {"text": event.text if isinstance(event, TextDelta) else ""}
        role = {"role": "assistant"} if is_first else {}
        return {"delta": role | _delta(event)}

    def as_json(self) -> Json:
        """Returns the whole choice, once its generation has ended."""
        events = [event for found in self._counted() for event in found]
        answer = whole_answer([TextDelta(self._echo), *events])
        return {
            "index": self.index,
            **({"message": _message(answer)} if self._is_chat else {"text": answer.text}),
            "logprobs": self._next_logprobs(),
            "finish_reason": self.finish_reason,
        }

    def _counted(self) -> Iterator[list[Event]]:
        """Yields the answer's events, and counts the characters of their texts."""
        self._num_chars = len(self._echo)
        for piece, events in self.answer.pieces():
            self._num_chars += len(piece)
            yield events

    def _next_logprobs(self) -> LogprobsAnswer | None:
        return None if self._logprobs is None else self._shaped(self._take_scored())

    def _take_scored(self) -> list[ScoredToken]:
        ahead, self._ahead = self._ahead, []
        return ahead + self.answer.generation.take_scored()

    def _shaped(self, tokens: Sequence[ScoredToken]) -> LogprobsAnswer:
        assert self._logprobs is not None
        is_stopped = self.answer.generation.stop_string is not None
        return self._logprobs.shape(tokens, self._num_chars if is_stopped else None)


class ChoicesWriter:
    """Writes the choices of one request. `created_at` is in seconds since 1970."""

    def __init__(
        self,
        body: GenerationBody,
        tokenizer: Tokenizer,
        chosen: ChosenModel,
        request_id: str,
        created_at: int,
    ) -> None:
        self._body = body
        self._tokenizer = tokenizer
        self._route = chosen.route
        self._is_chat = isinstance(body, ChatBody)
        self._object = "chat.completion" if self._is_chat else "text_completion"
        request_id = ("chatcmpl-" if self._is_chat else "cmpl-") + request_id
        self._identity: Json = {"id": request_id, "created": created_at, "model": chosen.shown}

    def complete(self, answers: Sequence[ChatAnswer]) -> Json:
        """Returns the whole answer. Its usage counts a prompt once, however many choices it has."""
        choices = self._choices(answers)
        shapes = [choice.as_json() for choice in choices]
        of_prompts = [self._prompt_logprobs(answers, choice.index) for choice in choices]
        response = {**self._identity, "object": self._object, "choices": shapes}
        if not self._is_chat:  # as in vLLM: in the choice; for a chat, beside the choices
            response["choices"] = [
                shape | about for shape, about in zip(shapes, of_prompts, strict=True)
            ]
        beside = of_prompts[0] if self._is_chat else {}
        return {**response, "usage": self._usage(answers), **beside}

    def stream(self, answers: Sequence[ChatAnswer]) -> Iterator[bytes]:
        """Yields SSE: pieces, the finish of each choice, usage if requested, and `[DONE]`."""
        choices, options = self._choices(answers), self._body.stream_options or StreamOptions()
        kind = f"{self._object}.chunk" if self._is_chat else self._object
        head = {**self._identity, "object": kind}
        # Only the choice differs between events, so the rest is encoded once.
        prefix = f'data: {dumped(head)[:-1]},"choices":['
        suffix = '],"usage":null}\n\n' if options.include_usage else "]}\n\n"
        try:
            for shape in self._shapes(choices):
                if options.continuous_usage_stats:
                    yield sse({**head, "choices": [shape], "usage": self._usage(answers)})
                else:
                    yield (prefix + dumped(shape) + suffix).encode()
        except HearthError as error:
            yield sse(error.body())
            raise
        if options.include_usage:
            yield sse({**head, "choices": [], "usage": self._usage(answers)})
        yield DONE

    def _shapes(self, choices: Sequence[Choice]) -> Iterator[Json]:
        begun: set[int] = set()
        for choice, piece in _in_turn(choices):
            event, logprobs = piece or (None, None)
            yield {
                "index": choice.index,
                **choice.delta(event, choice.index not in begun),
                "logprobs": logprobs,
                "finish_reason": choice.finish_reason if piece is None else None,
            }
            begun.add(choice.index)

    def _choices(self, answers: Sequence[ChatAnswer]) -> list[Choice]:
        return [
            Choice(index, answer, self._body, self._tokenizer)
            for index, answer in enumerate(answers)
        ]

    def _prompt_logprobs(self, answers: Sequence[ChatAnswer], index: int) -> Json:
        """Returns the prompt's log probabilities, which its first choice has computed."""
        shown = self._body.prompt_logprobs
        if shown is None:
            return {}
        scored = answers[index - index % self._body.num_choices].generation.scored_prompt
        return {"prompt_logprobs": prompt_logprobs(first_of(scored, shown), self._tokenizer)}

    def _usage(self, answers: Sequence[ChatAnswer]) -> Usage:
        records = [answer.generation.record() for answer in answers]
        counts = usage(records, records[:: self._body.num_choices])
        if self._route is not None:
            counts["router"] = {
                "expert": self._route.member,
                "confidence": self._route.confidence,
                "method": self._route.method,
            }
        return counts


def _in_turn(
    choices: Sequence[Choice],
) -> Iterator[tuple[Choice, tuple[Event | None, LogprobsAnswer | None] | None]]:
    """Yields a piece of each choice in turn, and None at its end.

    A choice without news is passed over, so a paused one delays no other. If none has news, this
    waits for the first one, which pauses last; the same step brings the others a token, too.
    """
    running = [(choice, choice.pieces()) for choice in choices]
    while running:
        ready = [each for each in running if each[0].answer.generation.has_news]
        for each in ready or running[:1]:
            choice, pieces = each
            piece = next(pieces, None)
            if piece is None:
                running.remove(each)
            yield choice, piece


def usage(records: Sequence[GenerationRecord], of_prompts: Sequence[GenerationRecord]) -> Usage:
    """Returns OpenAI's counts, and for a single generation the server's own times in seconds."""
    prompt_tokens = sum(record.prompt_tokens for record in of_prompts)
    completion_tokens = sum(record.completion_tokens for record in records)
    total_tokens = prompt_tokens + completion_tokens
    cached_tokens = sum(record.reused_tokens for record in of_prompts)
    counts = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=total_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
    )
    if len(records) > 1:
        return counts
    (record,) = records
    with_times: Usage = {
        **counts,
        "time_to_first_token": record.ttft_s,
        "queue_time": record.queue_s,
        "total_latency": record.e2e_s,
        "completion_tokens_after_first_per_sec": record.tokens_per_s,
        "completion_tokens_after_first_per_sec_first_ten": record.early_tokens_per_s,
        "total_tokens_per_sec": total_tokens / record.e2e_s if record.e2e_s > 0 else None,
        "batch_size_used": round(record.mean_batch_size),
        "acceptance_rate": None,
        "switching_time": 0.0,
    }
    if record.switch is not None:
        with_times["switching_time"] = record.switch.switching_time_s
        with_times["switch"] = {
            "wait_s": record.switch.wait_s,
            "evict_s": record.switch.evict_s,
            "load_s": record.switch.load_s,
            "initiator": record.switch.is_initiator,
            "from": record.switch.from_name,
        }
    depths = record.depths
    if depths.drafted_tokens and record.tokens_per_step is not None:
        with_times["acceptance_rate"] = depths.accepted_tokens / depths.drafted_tokens
        with_times["tokens_per_step"] = record.tokens_per_step
        with_times["acceptance_by_depth"] = depths.acceptance_by_depth
    return with_times
