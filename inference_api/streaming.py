"""One generation seen from its request thread: from a valid body to pieces of text.

`Generations.begin` puts a request on its way; the `TextGeneration` it returns belongs to that
request's thread until `close`, which leaves nothing of it behind.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from inference_api.decode_backend import DecodeBackend
from inference_api.disconnects import DisconnectWatcher
from inference_api.errors import ContextTooLong
from inference_api.input_queue import InputQueue
from inference_api.metrics import GenerationRecord, ServerMetrics
from inference_api.output_queues import OutputQueue, OutputQueues
from inference_api.request import FinishReason, GenerationRequest, TokenEvent
from inference_api.schema import GenerationBody
from inference_api.tokens import StopMatcher, TextStream, Tokenizer

logger = logging.getLogger(__name__)

EVENT_WAIT_S = 5.0  # one wait for the next event; repeated until it comes

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: for the log, and the connection that tells when they hang up."""

    request_id: str
    team_id: str | None = None
    connection: socket.socket | None = None


class TextGeneration:
    """The text of one session as it comes. Used by one thread, except `abandon`."""

    def __init__(
        self,
        request: GenerationRequest,
        events: OutputQueue,
        text: TextStream,
        stop: StopMatcher,
        on_token_gap: Callable[[float], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.session_id = request.session_id
        self.finish_reason: FinishReason | None = None
        self._request = request
        self._events = events
        self._text = text
        self._stop = stop
        self._on_token_gap = on_token_gap
        self._clock = clock
        self._at_end: list[Callable[[], None]] = []
        self._first_event: TokenEvent | None = None
        self._completion_tokens = 0
        self._begun_s = clock()
        self._first_token_s = self._last_token_s = self._begun_s

    def at_end(self, action: Callable[[], None]) -> None:
        """Register what `close` has to do; the last registered is done first."""
        self._at_end.append(action)

    def wait_until_started(self) -> None:
        """Block until the first event, so that a failure before it still has its own status."""
        event = self._next_event()
        if event.error is not None:
            raise event.error
        self._first_event = event
        self._first_token_s = self._clock()

    def pieces(self) -> Iterator[str]:
        """Text up to the stop string or the end; never an empty piece. Raises HearthError."""
        event = self._first_event or self._next_event()
        while True:
            piece = self._take(event)
            if piece:
                yield piece
            if self.finish_reason is not None:
                return
            event = self._next_event()

    def abandon(self) -> None:
        """The client is gone: wake the thread that waits here. Any thread may call it."""
        self._events.put(TokenEvent((), FinishReason.CANCELLED))

    def close(self) -> None:
        """Give back row, queue and watch, in whatever state they are. Idempotent."""
        while self._at_end:
            self._at_end.pop()()

    def record(self) -> GenerationRecord | None:
        """How it went so far; None if it never started."""
        if self._first_event is None:
            return None
        admitted_s = self._first_event.admitted_at_s or self._begun_s
        return GenerationRecord(
            prompt_tokens=len(self._request.prompt_tokens),
            completion_tokens=self._completion_tokens,
            queue_s=admitted_s - self._begun_s,
            ttft_s=self._first_token_s - self._begun_s,
            e2e_s=self._last_token_s - self._begun_s,
            finish_reason=str(self.finish_reason or FinishReason.CANCELLED),
        )

    def _take(self, event: TokenEvent) -> str:
        if event.token_ids:
            self._count(len(event.token_ids))
        self.finish_reason = event.finish_reason
        if event.error is not None:
            raise event.error
        piece = self._stop.push(self._text.push(event.token_ids))
        if event.finish_reason is not None:
            piece += self._stop.push(self._text.finish()) + self._stop.finish()
        if self._stop.has_matched:
            self.finish_reason = FinishReason.STOP
        return piece

    def _next_event(self) -> TokenEvent:
        while (event := self._events.get(EVENT_WAIT_S)) is None:
            continue
        return event

    def _count(self, num_tokens: int) -> None:
        now_s = self._clock()
        if self._completion_tokens:
            self._on_token_gap(now_s - self._last_token_s)
        self._last_token_s = now_s
        self._completion_tokens += num_tokens


class Generations:
    """Puts requests on their way. Immutable; any request thread may call it."""

    def __init__(
        self,
        backend: DecodeBackend,
        input_queue: InputQueue,
        output_queues: OutputQueues,
        watcher: DisconnectWatcher,
        metrics: ServerMetrics,
    ) -> None:
        self._backend = backend
        self._input_queue = input_queue
        self._output_queues = output_queues
        self._watcher = watcher
        self._metrics = metrics

    def begin(
        self,
        body: GenerationBody,
        encode: Callable[[Tokenizer, str], Sequence[int]],
        caller: Caller,
    ) -> TextGeneration:
        """Queue a request and return once it has its first event (or its failure: raises).

        Raises NotReady, Draining, BackendFailed, ContextTooLong and QueueFull.
        """
        self._backend.check_admission()
        self._input_queue.check_room()  # before the work of encoding, not after it
        tokenizer = self._backend.tokenizer
        prompt_tokens = tuple(encode(tokenizer, body.text))
        if not 0 < len(prompt_tokens) < self._backend.runner.max_seq_len:
            raise ContextTooLong(len(prompt_tokens), self._backend.runner.max_seq_len)
        events = self._output_queues.open(body.session_id)
        request = GenerationRequest(
            events.session_id,
            prompt_tokens,
            body.max_tokens,
            body.sampling,
            tokenizer.stop_token_ids,
        )
        generation = TextGeneration(
            request,
            events,
            TextStream(tokenizer),
            StopMatcher(body.stop_strings),
            self._metrics.token_gap,
        )
        try:
            self._submit(generation, request, caller)
            generation.wait_until_started()
        except BaseException:
            generation.close()
            raise
        return generation

    def _submit(
        self, generation: TextGeneration, request: GenerationRequest, caller: Caller
    ) -> None:
        def cancel() -> None:
            self._backend.cancel(request.session_id)

        def hang_up() -> None:
            cancel()
            generation.abandon()

        generation.at_end(lambda: self._write_down(generation, caller))
        generation.at_end(lambda: self._output_queues.close(request.session_id))
        self._input_queue.put(request)
        generation.at_end(cancel)
        if caller.connection is not None:
            generation.at_end(self._watcher.watch(caller.connection, hang_up))

    def _write_down(self, generation: TextGeneration, caller: Caller) -> None:
        """One log line and one set of metrics for each generation that started."""
        record = generation.record()
        if record is None:
            return
        self._metrics.generation_ended(record)
        itl_s = (record.e2e_s - record.ttft_s) / max(1, record.completion_tokens - 1)
        fields = {
            "request_id": caller.request_id,
            "team_id": caller.team_id or "-",
            "session_id": generation.session_id,
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.completion_tokens,
            "queue_ms": _ms(record.queue_s),
            "ttft_ms": _ms(record.ttft_s),
            "itl_ms": _ms(itl_s),
            "finish_reason": record.finish_reason,
        }
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        logger.info("generation %s", text, extra=fields)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
