"""The seam between the decode loop and a model: `ModelRunner`.

The loop owns which row runs whom and every position; a runner owns weights and KV memory. All
calls come from the decode thread. Importing this module loads no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inference_api.request import SamplingParams


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """One active user row in a decode step.

    `token_id` is the last token of the sequence, not yet in the KV cache; it is written at
    `position`, and the row's token for `position + 1` is drawn. `prompt_tokens` and `generated`
    (which ends with `token_id`, unless that is still the prompt's last) are the loop's own lists:
    read them, never keep or change them.
    """

    row: int
    token_id: int
    position: int
    sampling: SamplingParams
    prompt_tokens: Sequence[int]
    generated: Sequence[int]


class ModelRunner(Protocol):
    """A model over `max_rows` user rows of at most `max_seq_len` tokens each.

    A prompt is prefilled up to, not including, its last token; that one is the first decode
    input, so that every token is drawn by `decode` and prefill needs no output head.
    """

    max_rows: int
    max_seq_len: int
    vocab_size: int

    def load(self) -> None:
        """Bring weights and KV cache into memory. Raises StartupError when they do not fit."""

    def warm_up(self) -> None:
        """Run every shape once, so that the first request does not pay for it."""

    def prefill(self, row: int, start: int, token_ids: Sequence[int]) -> None:
        """Write `token_ids` into `row`'s cache at positions `start`, `start + 1`, …"""

    def decode(self, inputs: Sequence[DecodeInput]) -> list[int]:
        """One step for all active rows: write each input token, draw each row's next.

        The token drawn for a row depends on that row alone: never on its neighbours, nor on
        which row it is. Randomness is a function of (seed, position).
        """

    def release(self, row: int) -> None:
        """The row's request has ended; its cache content may be overwritten."""
