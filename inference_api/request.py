"""The nouns that travel between threads: all of them frozen, so any thread may hold them.

A `GenerationRequest` goes forward from a request thread to the decode thread; `TokenEvent`s come
back. Nothing here knows Flask, torch or text: prompts and events are token ids.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from inference_api.errors import HearthError

SessionId = NewType("SessionId", str)


class FinishReason(StrEnum):
    """Why a generation ended; the wire value is OpenAI's where OpenAI has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. `is_greedy` requests ignore everything but the penalties."""

    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = all tokens; 1 = greedy
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """What a client asks for besides the prompt."""

    max_tokens: int | None = None  # None: to the end of the context
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    session_id: str | None = None  # None: made for it
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue. The prompt is never empty and shorter than the model's context."""

    session_id: SessionId
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one decode step produced for one session; the last event has a finish reason.

    `error` is set exactly when the finish reason is `ERROR`. Stop tokens are not among `token_ids`.
    `admitted_at_s` (monotonic clock) is when the request left the queue for a row, if it did;
    `batch_size` is how many rows decoded together in the step.
    """

    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    error: HearthError | None = None
    admitted_at_s: float | None = None
    batch_size: int = 0
