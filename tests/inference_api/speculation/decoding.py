"""Real models, decoded step by step on the test's thread, with any draft source.

What tests know of how a source joins a model is here and in `sources.py`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.drafts import DraftSource
from inference_api.core.input_queue import InputQueue
from inference_api.core.output_queues import OutputQueues
from inference_api.core.plan import StepPlanner
from inference_api.core.rows import Tokens
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.engine.local_runner import LocalRunner
from inference_api.loading.options import EngineOptions
from inference_api.model_loading import loaded_alone
from inference_api.pipeline.runner import PipelineRunner
from inference_api.request import (
    FinishReason,
    GenerationParams,
    GenerationRequest,
    OutputQueue,
    SamplingParams,
    SessionId,
    TokenEvent,
)
from inference_api.runner import DraftHeads, Draw, RowStep, place_own_pages
from inference_api.settings import EMBEDDED_MODEL, Settings
from inference_api.speculation.scheduler import DraftScheduler
from inference_api.text.tokens import Tokenizer, load_tokenizer

NAME = EMBEDDED_MODEL.name
MAX_ROWS = 32
MAX_GUESSES = 32  # of a row in one step
GREEDY = SamplingParams(temperature=0.0)
FORMS: Mapping[str, Mapping[str, Any]] = {
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}


class Model:
    """A runner of the model in a folder. Its cache belongs to the `Decoding` that was made last."""

    def __init__(
        self,
        form: str,
        folder: Path = EMBEDDED_MODEL,
        max_seq_len: int = 1024,
        make_runner: Callable[[Path, EngineOptions], LocalRunner | PipelineRunner] = KernelRunner,
    ) -> None:
        options = EngineOptions(
            device="cpu", max_rows=MAX_ROWS, max_seq_len=max_seq_len, has_medusa=True
        )
        self.runner = make_runner(folder, replace(options, **FORMS[form]))
        self.runner.load()
        place_own_pages(self.runner)
        # Whatever the model: prompts are token ids, and nothing here asks for text of another.
        self.tokenizer: Tokenizer = load_tokenizer(EMBEDDED_MODEL, self.runner.eos_token_ids)

    @property
    def heads(self) -> DraftHeads:
        assert self.runner.medusa is not None
        return self.runner.medusa

    def log_likelihoods(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Of every token after these, [vocabulary], by a plain step. Writes to row 0."""
        every = replace(GREEDY, num_logprobs=self.runner.vocab_size)
        step = RowStep(0, 0, tokens, (Draw(every, tokens, ()),))
        ((drawn,), _) = self.runner.step([step])[0]
        assert drawn.logprobs is not None
        token_ids, values = zip(*sorted(drawn.logprobs.top), strict=True)
        assert token_ids == tuple(range(self.runner.vocab_size))
        return np.array(values, np.float64)


class Answer:
    """What a request was answered, step by step."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.events: list[TokenEvent] = []

    @cached_property
    def tokens(self) -> Tokens:
        return tuple(token for event in self.events for token in event.token_ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.events[-1].finish_reason if self.events else None

    @property
    def said(self) -> tuple[Tokens, FinishReason | None]:
        """What of an answer may not change."""
        return self.tokens, self.finish_reason

    @property
    def accepted_tokens(self) -> int:
        return sum(event.accepted_tokens for event in self.events)


class _Recorder(OutputQueue):
    def __init__(self, name: str, events: list[TokenEvent]) -> None:
        super().__init__(SessionId(name), NAME)
        self.events = events

    def put(self, event: TokenEvent) -> None:
        self.events.append(event)


class Decoding:
    """The loop over one model's rows, from an empty cache on."""

    def __init__(self, model: Model, drafts: DraftSource | None = None) -> None:
        # Room for guesses beside prompts, which go first: requests join in most steps here.
        settings = Settings(user_rows=MAX_ROWS, itl_budget=1000)
        self.input_queue = InputQueue(10_000, {NAME: MAX_ROWS})
        self.backend = DecodeBackend(settings, self.input_queue, OutputQueues())
        loaded = loaded_alone(NAME, model.runner, model.tokenizer, settings)
        scheduler = None
        if drafts is not None:
            scheduler = DraftScheduler([drafts], MAX_GUESSES, MAX_ROWS, tries_all=True)
        planner = StepPlanner(loaded.rows, model.runner, settings, scheduler)
        self.backend.take([replace(loaded, planner=planner, speculation=scheduler)])
        self.backend._rest = lambda: None  # type: ignore[method-assign]  # no waiting for prompts
        self.backend._become_ready()
        self.requests: list[GenerationRequest] = []  # of the last call of `answers`

    def answers(
        self,
        requests: Iterable[GenerationRequest],
        on_step: Callable[[], None] = lambda: None,
    ) -> list[Answer]:
        """All at once, as many as there are rows; who waits joins as others leave. `on_step` is
        called before every step. Sessions get names of their own: their number in `requests`."""
        answers = [Answer(each) for each in requests]
        self.requests = [
            replace(each.request, output=_Recorder(str(number), each.events))
            for number, each in enumerate(answers)
        ]
        for request in self.requests:
            self.input_queue.put(request)
        while len(self.input_queue) or any(self.backend.users):
            on_step()
            self.backend.step()
        return answers


def one_by_one(decoding: Decoding, requests: Iterable[GenerationRequest]) -> list[Answer]:
    return [answer for each in requests for answer in decoding.answers([each])]


def request_of(
    prompt: Sequence[int],
    max_tokens: int,
    sampling: SamplingParams = GREEDY,
    stop_token_ids: frozenset[int] = frozenset(),
) -> GenerationRequest:
    output = OutputQueue(SessionId(""), NAME)
    params = GenerationParams(max_tokens, sampling=sampling)
    return GenerationRequest(output, NAME, tuple(prompt), params, stop_token_ids)
