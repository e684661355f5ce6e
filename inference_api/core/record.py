"""The record of an ended generation, and the observers that receive it."""

from dataclasses import dataclass, field

from inference_api.core.draft_depths import DraftDepths
from inference_api.errors import HearthError
from inference_api.request import Caller, Switch


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """A generation and its figures, made by its request thread."""

    caller: Caller
    session_id: str
    model: str
    prompt_tokens: int
    reused_tokens: int  # prompt tokens that needed no prefill
    completion_tokens: int
    begun_s: float  # on the monotonic clock
    queue_s: float
    prefill_s: float  # from leaving the queue to the first token
    decode_s: float  # from the first token to the last
    ttft_s: float
    e2e_s: float
    finish_reason: str
    tokens_per_s: float | None  # without the first token
    early_tokens_per_s: float | None  # the same, for the first ten tokens after the first
    mean_batch_size: float  # rows that decoded together, averaged over this generation's tokens
    depths: DraftDepths = field(default_factory=DraftDepths)  # only tokens in the answer count
    tokens_per_step: float | None = None
    switch: Switch | None = None  # set if the request waited for its model to be loaded
    error: HearthError | None = None  # the error that ended it


class Observer:
    """Base class of observers. One of its methods is called for each request, on its thread."""

    def refused(self, caller: Caller, model: str, error: HearthError) -> None:
        """The request ended before its first token."""

    def ended(self, record: GenerationRecord) -> None:
        """The generation, which had its first event, is over."""
