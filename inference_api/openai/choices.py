"""The answers of OpenAI's two generation routes, whole or streamed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_api.errors import HearthError
from inference_api.generation.chat import events_of
from inference_api.generation.streaming import TextGeneration
from inference_api.observe.metrics import GenerationRecord
from inference_api.openai.answers import PromptLogprobs, PromptTokensDetails, Usage
from inference_api.openai.logprobs import Logprobs, LogprobsAnswer
from inference_api.openai.requests import StreamOptions
from inference_api.openai.shapes import Form
from inference_api.request import FinishReason, ScoredToken
from inference_api.text.expert_router import Route
from inference_api.tools.answers import AnswerReader
from inference_api.tools.events import CallEnd, Event, TextDelta, whole

DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]

_dumped = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class AboutChoice:
    """What of a request its choices need to know.

    `echo` is the prompt's text where the answer begins with it, else empty, and `scored_echo` its
    tokens, if they are to be shown; `prompt_logprobs` stand beside the answer; `route` is how its
    model was chosen, if not by name; `is_named_call` where the client chose the function to call.
    """

    echo: str = ""
    scored_echo: Sequence[ScoredToken] = ()
    prompt_logprobs: PromptLogprobs | None = None
    route: Route | None = None
    is_named_call: bool = False


class Choice:
    """One of the answer's choices: a generation, its echo and its log probabilities."""

    def __init__(
        self,
        index: int,
        generation: TextGeneration,
        reader: AnswerReader,
        logprobs: Logprobs | None,
        about: "AboutChoice",
    ) -> None:
        self.index = index
        self.generation = generation
        self.about = about
        self._reader = reader
        self._logprobs = logprobs
        self._num_chars = 0
        self._ahead = list(about.scored_echo)  # of what the generation has scored

    @property
    def finish_reason(self) -> str:
        """Of the whole answer, once it has ended."""
        reason = self.generation.record().finish_reason
        calls = reason == FinishReason.STOP and self._reader.num_calls > 0
        return "tool_calls" if calls and not self.about.is_named_call else reason

    def pieces(self) -> Iterator[tuple[Event | None, LogprobsAnswer | None]]:
        """Yields events and log probabilities as they come; the last may be without an event.

        Raises HearthError.
        """
        if self.about.echo:
            yield TextDelta(self.about.echo), None
            self._num_chars = len(self.about.echo)
        for events in events_of(self._counted_pieces(), self._reader):
            shown = [event for event in events if not isinstance(event, CallEnd)]
            for number, event in enumerate(shown):
                yield event, None if number else self._next_logprobs()
        if self._logprobs is not None and (rest := self._take_scored()):
            yield None, self._shaped(rest)

    def whole(self, form: Form) -> Json:
        """Returns the choice in one piece, once its generation has ended."""
        self._num_chars = len(self.about.echo)
        events = [
            each for found in events_of(self._counted_pieces(), self._reader) for each in found
        ]
        shape = {
            "index": self.index,
            **form.content(whole([TextDelta(self.about.echo), *events])),
            "logprobs": self._next_logprobs(),
            "finish_reason": self.finish_reason,
        }
        return shape if form.is_chat else shape | self.prompt_logprobs

    @property
    def prompt_logprobs(self) -> Json:
        """Where vLLM has them: of a completion in the choice, of a chat beside the choices."""
        shown = self.about.prompt_logprobs
        return {} if shown is None else {"prompt_logprobs": shown}

    def _counted_pieces(self) -> Iterator[str]:
        for piece in self.generation.pieces():
            self._num_chars += len(piece)
            yield piece

    def _next_logprobs(self) -> LogprobsAnswer | None:
        return None if self._logprobs is None else self._shaped(self._take_scored())

    def _take_scored(self) -> list[ScoredToken]:
        ahead, self._ahead = self._ahead, []
        return ahead + self.generation.take_scored()

    def _shaped(self, tokens: Sequence[ScoredToken]) -> LogprobsAnswer:
        assert self._logprobs is not None
        return self._logprobs.shape(tokens, self._num_chars if self.generation.is_cut else None)


def whole_answer(form: Form, identity: Json, choices: Sequence[Choice], num_choices: int) -> Json:
    """Returns the answer in one piece, once every generation has ended. A prompt counts once."""
    shapes = [choice.whole(form) for choice in choices]
    counts = _usage(choices, num_choices)
    of_prompt = choices[0].prompt_logprobs if form.is_chat else {}
    return {**identity, "object": form.object, "choices": shapes, "usage": counts, **of_prompt}


def chunks(
    form: Form,
    identity: Json,
    choices: Sequence[Choice],
    num_choices: int,
    options: StreamOptions,
) -> Iterator[bytes]:
    """Yields server-sent events: one per piece, one for the finish of each choice, one for usage if
    asked, `[DONE]`."""
    head = {**identity, "object": form.chunk_object}
    # Everything but the choice is the same in every event, and not worth encoding again.
    prefix = f'data: {_dumped(head)[:-1]},"choices":['
    suffix = '],"usage":null}\n\n' if options.include_usage else "]}\n\n"
    begun: set[int] = set()

    def chunk(
        choice: Choice,
        event: Event | None,
        logprobs: LogprobsAnswer | None,
        finish_reason: str | None,
    ) -> bytes:
        shape = {
            "index": choice.index,
            **form.delta(event, choice.index not in begun),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        begun.add(choice.index)
        if options.continuous_usage_stats:
            return sse({**head, "choices": [shape], "usage": _usage(choices, num_choices)})
        return (prefix + _dumped(shape) + suffix).encode()

    try:
        for choice, piece in _in_turn(choices):
            if piece is None:
                yield chunk(choice, None, None, choice.finish_reason)
            else:
                yield chunk(choice, *piece, None)
    except HearthError as error:
        yield sse(error.body())
        raise  # so that the connection breaks instead of ending well
    if options.include_usage:
        yield sse({**head, "choices": [], "usage": _usage(choices, num_choices)})
    yield DONE


def _in_turn(
    choices: Sequence[Choice],
) -> Iterator[tuple[Choice, tuple[Event | None, LogprobsAnswer | None] | None]]:
    """Yields a piece of each choice in turn, None at its end.

    Waiting for one holds up the others no longer than a step: all of them run, and a step brings
    each a token.
    """
    running = [(choice, choice.pieces()) for choice in choices]
    while running:
        for each in list(running):
            choice, pieces = each
            piece = next(pieces, None)
            if piece is None:
                running.remove(each)
            yield choice, piece


def _usage(choices: Sequence[Choice], num_choices: int) -> Usage:
    """`choices` are `num_choices` for each prompt; a prompt counts once."""
    records = [choice.generation.record() for choice in choices]
    counts = usage(records, records[::num_choices])
    route = choices[0].about.route
    if route is not None:
        counts["router"] = {
            "expert": route.expert,
            "confidence": route.confidence,
            "method": route.method,
        }
    return counts


def usage(records: Sequence[GenerationRecord], of_prompts: Sequence[GenerationRecord]) -> Usage:
    """Returns OpenAI's counts; for a single generation also the server's own times, in seconds."""
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
    own_times: Usage = {
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
        own_times["switching_time"] = record.switch.switching_time_s
        own_times["switch"] = {
            "wait_s": record.switch.wait_s,
            "evict_s": record.switch.evict_s,
            "load_s": record.switch.load_s,
            "initiator": record.switch.is_initiator,
            "from": record.switch.from_name,
        }
    if record.drafted_tokens and record.tokens_per_step is not None:
        own_times["acceptance_rate"] = record.accepted_tokens / record.drafted_tokens
        own_times["tokens_per_step"] = record.tokens_per_step
        own_times["acceptance_by_depth"] = list(record.acceptance_by_depth)
    return own_times


def sse(content: Mapping[str, object]) -> bytes:
    """Returns one server-sent event."""
    return f"data: {_dumped(content)}\n\n".encode()
