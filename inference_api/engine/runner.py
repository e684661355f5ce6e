"""The seam between the decode loop and a model: `ModelRunner`.

The loop owns which row runs whom and every position; a runner owns weights and KV memory. All
calls come from the decode thread. Importing this module loads no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inference_api.request import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens of one row, for its cache at positions `start`, `start + 1`, …"""

    row: int
    start: int
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """One active user row in a decode step.

    `token_id` is the last token of the sequence, not yet in the KV cache; it is written at
    `position`, and the row's token for `position + 1` is drawn. `prompt_tokens` and `generated`
    (which ends with `token_id`, unless that is still the prompt's last) are the loop's own lists:
    read them, never keep or change them. Where the next token is known already, as `known_id`, it
    is not drawn: only its log probability is wanted. `allowed` has a bit per token id, lowest
    first, where not all of them may be drawn.
    """

    row: int
    token_id: int
    position: int
    sampling: SamplingParams
    prompt_tokens: Sequence[int]
    generated: Sequence[int]
    known_id: int | None = None
    allowed: bytes | None = None


class Drawn(NamedTuple):
    """What follows a decode input; `logprobs` when its sampling asks for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class ModelRunner(Protocol):
    """A model over `max_rows` user rows of at most `max_seq_len` tokens each.

    A prompt is prefilled up to, not including, its last token; that one is the first decode
    input, so that every token is drawn by a decode input and a chunk needs no output head.
    """

    max_rows: int
    max_seq_len: int
    vocab_size: int
    is_batch_invariant: bool
    """A token's numbers are the same bits whatever shares its step, and however its prompt was
    cut. Else that is true of decode inputs only, and of prompts that are always cut alike."""

    def load(self) -> None:
        """Bring weights and KV cache into memory. Raises StartupError when they do not fit."""

    def warm_up(self) -> None:
        """Run every shape once, so that the first request does not pay for it."""

    def step(self, chunks: Sequence[PrefillChunk], inputs: Sequence[DecodeInput]) -> list[Drawn]:
        """Write the chunks, then write each input's token and draw its row's next: one per input.

        A row may bring the last chunk of its prompt and its first input together, and several
        inputs at positions that follow each other, in their order. The token drawn
        for a row depends on that row alone: never on its neighbours, nor on which row it is.
        Randomness is a function of (seed, position).
        """

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Make the first positions of row `target`'s cache those of row `source`."""

    def release(self, row: int) -> None:
        """The row's request has ended; its cache stays as it is until the row is written again."""
