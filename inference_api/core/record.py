"""The record of an ended generation, and the observers that receive it."""

from dataclasses import dataclass, field

from inference_api.core.draft_depths import DraftDepths
from inference_api.errors import HearthError
from inference_api.request import Caller, Switch


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """Figures of an ended generation, made by its request thread."""

    model: str
    prompt_tokens: int
    reused_tokens: int  # prompt tokens taken from a row's cache
    completion_tokens: int
    begun_s: float  # on the monotonic clock
    queue_s: float
    prefill_s: float  # from leaving the queue to the first token
    decode_s: float  # from the first token to the last
    ttft_s: float
    e2e_s: float
    finish_reason: str
    tokens_per_s: float | None  # after the first token
    early_tokens_per_s: float | None  # the first ten of these
    mean_batch_size: float  # rows decoded together, as this generation met them
    depths: DraftDepths = field(default_factory=DraftDepths)  # accepted: that the answer has
    tokens_per_step: float | None = None
    switch: Switch | None = None  # where the model had to be brought into memory


@dataclass(frozen=True, slots=True)
class EndedGeneration:
    """An ended generation that had its first event. `error` is the one that ended it, if any."""

    record: GenerationRecord
    caller: Caller
    session_id: str
    error: HearthError | None


class Observer:
    """Base class of observers: called once for each request, on the request's thread."""

    def refused(self, caller: Caller, model: str, error: HearthError) -> None:
        """The request ended before its first token."""

    def ended(self, ended: EndedGeneration) -> None:
        """The generation is over."""
