"""Generations as their request threads see them: from valid parameters to pieces of text.

`Generations.admitted` admits a request. `begin` queues its prompts and returns a `TextGeneration`
for each, which belongs to the request's thread. `TextGeneration.close` releases its resources.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from common.connections.disconnects import DisconnectWatcher
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.record import GenerationRecord, Observer
from inference_api.core.served_model import ServedModel
from inference_api.core.timeline import Timeline
from inference_api.errors import ContextTooLong, HearthError, InvalidRequest, QueueFull
from inference_api.request import (
    Caller,
    FinishReason,
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    ScoredToken,
    Switch,
    TokenEvent,
)
from inference_api.settings.model import Speculation
from inference_api.text.constraints import bits_without
from inference_api.text.tokens import StopMatcher, TextStream, is_thinking

EVENT_WAIT_S = 5.0  # timeout of one wait for an event or for room; waits are repeated

Prompt = Sequence[int]  # token ids
Requests = Sequence[tuple[Prompt, GenerationParams]]


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """An admitted request: its model, its caller, and its arrival on `time.monotonic`."""

    model: ServedModel
    caller: Caller
    arrived_s: float


class TextGeneration:
    """Streams the text of one session. Used by one thread, except for `abandon`."""

    def __init__(
        self, request: GenerationRequest, text: TextStream, stop: StopMatcher, timeline: Timeline
    ) -> None:
        self.session_id = request.output.session_id
        self.finish_reason: FinishReason | None = None
        self.error: HearthError | None = None  # the error that ended it
        self.is_abandoned = False
        self.kept_token_ids = text.kept
        self.prompt_tokens: Sequence[int] = request.prompt_tokens
        self._request = request
        self._events = request.output
        self._text = text
        self._stop = stop
        self._timeline = timeline
        self._at_end = ExitStack()
        self._first_piece: str | None = None
        self._is_first_due = True  # until `pieces` has taken the first event
        self._scored: list[ScoredToken] = []
        self.scored_prompt: Sequence[ScoredToken] = ()  # from the first event, if requested
        self.embedding = b""  # the prompt's, from the first event, if requested

    def at_end(self, action: Callable[[], None]) -> None:
        """Register an action for `close`, which runs them in reverse order."""
        self._at_end.callback(action)

    def wait_until_started(self) -> None:
        """Block until the first event, so that a failure before it still gets its own status."""
        self._first_piece = self._next_piece()

    def pieces(self) -> Iterator[str]:
        """Yields text, in pieces that are never empty, until it ends. Raises HearthError."""
        assert self._first_piece is not None, "wait_until_started comes first"
        piece, self._is_first_due = self._first_piece, False
        while self.finish_reason is None:
            if piece:
                yield piece
            piece = self._next_piece()
        if piece:
            yield piece

    @property
    def has_news(self) -> bool:
        """Whether `pieces` can go on without waiting for an event."""
        return self._is_first_due or self.finish_reason is not None or self._events.has_events

    def take_scored(self) -> list[ScoredToken]:
        """Returns the tokens that came since the last call, if log probabilities were requested."""
        scored, self._scored = self._scored, []
        return scored

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, or None. Its tokens were generated."""
        return self._stop.matched

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return self._timeline.completion_tokens

    @property
    def switch(self) -> Switch | None:
        """From the first event on: the switch this request waited for, if any."""
        return self._timeline.switch

    def abandon(self) -> None:
        """Wake the thread that waits here, because the client has gone. Any thread may call it."""
        self.is_abandoned = True
        self._events.put(TokenEvent((), FinishReason.CANCELLED))

    def close(self) -> None:
        """End the request, close its queue, stop the watch and tell observers. Idempotent. If an
        action fails, its error is raised after all actions have run."""
        self._at_end.close()

    def record(self) -> GenerationRecord:
        """Returns the figures of the generation so far."""
        reason = self.finish_reason or FinishReason.CANCELLED
        return self._timeline.record(self._request, str(reason), self.error)

    @property
    def has_started(self) -> bool:
        return self._first_piece is not None

    def _next_piece(self) -> str:
        while (event := self._events.get(EVENT_WAIT_S)) is None:
            continue
        now_s = time.monotonic()
        piece, num_tokens = self._push(event.token_ids)
        if num_tokens:
            self._timeline.tokens(now_s, num_tokens, event.batch_size)
        if event.drafted_tokens:
            accepted_tokens = min(event.accepted_tokens, num_tokens)
            self._timeline.depths.add(event.drafted_tokens, accepted_tokens)
        if event.admitted_at_s is not None:
            self._timeline.admitted(event.admitted_at_s, event.reused_tokens, event.switch)
        self.embedding = event.embedding or self.embedding
        self.finish_reason = event.finish_reason
        self.error = event.error
        if event.error is not None:
            raise event.error
        is_scored = self._request.params.num_prompt_logprobs is not None
        is_first = self._first_piece is None and event.finish_reason is not FinishReason.CANCELLED
        if is_scored and is_first:
            pairs = zip(self._request.prompt_tokens, (None, *event.prompt_logprobs), strict=True)
            self.scored_prompt = list(map(ScoredToken._make, pairs))
        self._scored += map(ScoredToken, event.token_ids[:num_tokens], event.logprobs)
        if event.finish_reason is not None:
            piece += self._stop.push(self._text.finish()) + self._stop.finish()
        if self._stop.matched is not None:
            self.finish_reason = FinishReason.STOP
        return piece

    def _push(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Returns the text of an event, and the number of its tokens that belong to the answer:
        tokens after a completed stop string do not."""
        piece = ""
        for num_tokens, token_id in enumerate(token_ids, 1):
            piece += self._stop.push(self._text.push((token_id,)), num_tokens=1)
            if self._stop.matched is not None:
                return piece, num_tokens
        return piece, len(token_ids)


@dataclass(frozen=True, slots=True)
class Generations:
    """Starts generations and reports them to observers. For all request threads."""

    backend: DecodeBackend
    watcher: DisconnectWatcher
    observers: Sequence[Observer]
    on_token_gap: Callable[[str, float], None]
    """Called with the model and each inter-token latency in seconds."""

    @contextmanager
    def admitted(self, model: str, caller: Caller) -> Iterator[AdmittedRequest]:
        """Admit a request to `model`, a name of `Settings.served_models`, before its prompt is
        encoded. Encode it and call `begin` inside the context, which reports every HearthError to
        the observers. Raises NotReady, Draining, BackendFailed and QueueFull."""
        arrived_s = time.monotonic()
        try:
            self.backend.check_admission()
            self.backend.input_queue.check_room(model)
            yield AdmittedRequest(self.backend.served[model], caller, arrived_s)
        except HearthError as error:
            for observer in self.observers:
                observer.refused(caller, model, error)
            raise

    def begin(self, admitted: AdmittedRequest, requests: Requests) -> list[TextGeneration]:
        """Queue the requests of a call, and return once each has its first event. The first must
        find room in the queue at once; the others wait for room. If one fails, all are ended.

        Raises NotReady, Draining, BackendFailed, InvalidRequest, ContextTooLong, QueueFull, or the
        error with which a request failed before its first event.
        """
        generations: list[TextGeneration] = []
        max_seq_len = admitted.model.max_seq_len
        for prompt, _ in requests:  # checks all before it spends work on any
            if not prompt:
                raise InvalidRequest("The prompt has no tokens; give some text.")
            if len(prompt) >= max_seq_len:
                raise ContextTooLong(len(prompt), max_seq_len)
        with ExitStack() as unless_started:
            for prompt, params in requests:
                before = generations[-1] if generations else None
                generations.append(self._queue_after(before, admitted, prompt, params))
                unless_started.callback(generations[-1].close)
            for generation in generations:
                generation.wait_until_started()
            unless_started.pop_all()
        return generations

    def _queue_after(
        self,
        before: TextGeneration | None,
        admitted: AdmittedRequest,
        prompt: Prompt,
        params: GenerationParams,
    ) -> TextGeneration:
        """Queue a request. If it has one of its call `before` it, wait until there is room."""
        while before is not None:
            now = replace(admitted, arrived_s=time.monotonic())
            try:
                return self._queue(now, prompt, params, is_first=False)
            except QueueFull:
                if before.is_abandoned:
                    raise
            self.backend.input_queue.wait_for_room(admitted.model.name, EVENT_WAIT_S)
        return self._queue(admitted, prompt, params, is_first=True)

    def _queue(
        self, admitted: AdmittedRequest, prompt: Prompt, params: GenerationParams, is_first: bool
    ) -> TextGeneration:
        model, caller, backend = admitted.model, admitted.caller, self.backend
        backend.check_admission()
        backend.input_queue.check_room(model.name, is_first)  # before it compiles a constraint
        timeline = Timeline(admitted.arrived_s, partial(self.on_token_gap, model.name))
        text = TextStream(model.tokenizer, params.kept_token_ids)
        stop = StopMatcher(params.stop_strings, params.min_tokens, params.includes_stop)
        with ExitStack() as unless_queued:
            output = backend.output_queues.open(model.name, params.session_id)
            unless_queued.callback(backend.output_queues.close, output)
            request = request_of(admitted, output, prompt, params)
            generation = TextGeneration(request, text, stop, timeline)
            unless_queued.callback(generation.close)
            generation.at_end(lambda: self._report_end(generation))
            generation.at_end(lambda: backend.cancel(request))
            backend.input_queue.put(request, is_first)
            if caller.connection is not None:

                def hang_up() -> None:
                    backend.cancel(request)
                    generation.abandon()

                generation.at_end(self.watcher.watch(caller.connection, hang_up))
            unless_queued.pop_all()
        return generation

    def _report_end(self, generation: TextGeneration) -> None:
        """Report the end of a generation to all observers, if it had its first event."""
        if generation.has_started:
            record = generation.record()
            for observer in self.observers:
                observer.ended(record)


def request_of(
    admitted: AdmittedRequest, output: OutputQueue, prompt: Prompt, params: GenerationParams
) -> GenerationRequest:
    """Returns the request for the decode thread. Raises InvalidRequest for a token or a draft
    source that the model does not have, and for a constraint that cannot be followed."""
    model, prompt_tokens = admitted.model, tuple(prompt)
    _check_speculation(params.speculation, model)
    _check_token_ids("stop_token_ids", params.stop_token_ids, model.vocab_size)
    _check_token_ids(
        "logit_bias", [token_id for token_id, _ in params.sampling.logit_bias], model.vocab_size
    )
    grammar = None
    if (constraint := params.constraint) is not None:
        if constraint.thinking == "first" and is_thinking(model.tokenizer, prompt_tokens):
            constraint = replace(constraint, thinking="begun")
        grammar = model.grammars.compiled(constraint)
    stop_token_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_token_ids |= model.tokenizer.stop_token_ids
    defaults = {
        name: value for name, value in model.sampling_defaults.items() if name in params.unset
    }
    sampling = replace(params.sampling, **defaults)  # type: ignore[arg-type]
    not_stopping = bits_without(stop_token_ids, model.vocab_size) if params.min_tokens else None
    return GenerationRequest(
        output,
        model.name,
        prompt_tokens,
        replace(params, sampling=sampling, unset=frozenset()),
        stop_token_ids,
        not_stopping,
        admitted.arrived_s,
        grammar,
        admitted.caller,
    )


def _check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidRequest(
                f"{field}: {token_id} is no token id of this model; give 0 to {vocab_size - 1}.",
                field,
            )


def _check_speculation(requested: Speculation, model: ServedModel) -> None:
    """Raises InvalidRequest if this model does not have the draft source asked for."""
    served = ("auto", "off", *model.draft_sources)
    if requested not in served:
        needed = f"SPECULATION={requested}" + " and a DRAFT_MODEL" * (requested == "draft")
        raise InvalidRequest(
            f"speculation: is {requested!r}, which {model.name} is served without; give one of "
            f"{', '.join(map(repr, served))}, or start the server with {needed}.",
            "speculation",
        )
