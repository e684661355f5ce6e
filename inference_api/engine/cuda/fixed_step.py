"""Steps of fixed shape, which a CUDA graph can record. Decode thread only.

Tokens that draw come as many at once as there are user rows: one of each, or any of any, of drafts
or prompts that are scored. Both have the same shapes, so that a token has the same bits in either.
A prompt's chunk is filled up to one of a few sizes. What tokens they are and where is in one tensor
on the device, everything else follows from it there: the host looks at no value on the way. Short
contexts do not pay for long ones, because there is a step for each of a few lengths.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from inference_api.engine.cuda.attention import (
    FixedAttention,
    FixedChunkAttention,
    FixedTokenAttention,
    TokenPlace,
)
from inference_api.engine.cuda.decoder import Decoder, TorchOutputs, placed
from inference_api.engine.cuda.graphs import Capture, Step, capturing
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.loading.config import ModelConfig, cache_capacity
from inference_api.runner import RowStep

logger = logging.getLogger(__name__)

LengthForward = Callable[[Sequence[int], Tensor], Sequence[Tensor]]  # with the lengths up to one
Tokens = Sequence[tuple[int, TokenPlace]]  # ids, and where they are

ABSENT = -1  # the position of what has no part in a step
LEAST_LENGTH = 128
CHUNK_SIZES = (64, 256)  # what is longer takes longer to compute than to launch


class StepGraphs(NamedTuple):
    """Recorded steps of one shape, by the cache length that they read, ascending."""

    inputs: Tensor
    of_length: Mapping[int, Step]

    def run(self, inputs: Tensor) -> Sequence[Tensor]:
        """Run the shortest step that covers all positions, which are `inputs[1]`. The next run
        overwrites the outputs."""
        furthest = int(inputs[1].max())
        self.inputs.copy_(inputs)
        return next(step for length, step in self.of_length.items() if furthest < length)()


def step_lengths(max_seq_len: int) -> list[int]:
    """Returns the lengths that steps read of the cache, each four times the one before.

    A step attends over its own length and all shorter ones: a third more than over its own alone.
    """
    lengths = [cache_capacity(max_seq_len)]
    while lengths[0] >= 4 * LEAST_LENGTH:
        lengths.insert(0, cache_capacity(-(-lengths[0] // 4)))
    return lengths


class FixedStepDecoder:
    """`Decoder`, with steps of fixed shape for all but long chunks of prompts."""

    def __init__(
        self, config: ModelConfig, decoder: Decoder, cache: TorchCache, lengths: Sequence[int]
    ) -> None:
        """`lengths` ascend; the last holds the longest sequence."""
        self._config = config
        self._decoder = decoder
        self._cache = cache
        self._lengths = lengths
        self._device = cache.keys.device
        self._max_rows = cache.keys.shape[1]
        # For each token of a step, the slots of its row's positions: equal to them outside trees.
        self._slots = torch.arange(cache.keys.shape[3], device=self._device)
        self._slots = self._slots.repeat(self._max_rows, 1)
        sizes = config.vocab_size, config.hidden_size
        self._nothing = [torch.empty(0, size, device=self._device) for size in sizes]
        self._of_rows, self._of_tokens, self._of_chunks = self._made_by(partial)

    def capture(self, capture: Capture) -> None:
        """Record the steps. Where that fails they stay as they are, and the log says so."""
        try:
            self._of_rows, self._of_tokens, self._of_chunks = self._made_by(capture)
        except RuntimeError as error:
            logger.warning(
                "steps cannot be captured as CUDA graphs and are launched operation by operation, "
                "which is slower: %s",
                error,
            )

    def warm_up(self) -> None:
        self.capture(capturing())

    def forward(self, rows: Sequence[RowStep]) -> TorchOutputs:
        """See `Decoder`. Prompt tokens that draw nothing are a chunk of their own; the few that
        a draft model lacks before it draws are tokens of the step."""
        firsts = [
            each.num_undrawn if not each.draws or each.num_undrawn > self._max_rows else 0
            for each in rows
        ]
        before = [self._chunk(each, first) for each, first in zip(rows, firsts, strict=True)]
        of_rows = [list(placed(each, first)) for each, first in zip(rows, firsts, strict=True)]
        tokens = list(chain.from_iterable(of_rows))
        logits, states = self._all(tokens) if tokens else self._nothing
        drawing: list[int] = []
        hidden: list[Tensor | None] = []
        begin = 0
        for each, chunk_states, own in zip(rows, before, of_rows, strict=True):
            end = begin + len(own)
            drawing += range(end - len(each.draws), end)
            if each.wants_hidden:
                hidden.append(torch.cat([*chunk_states, states[begin:end].float()]))
            else:
                hidden.append(None)
            begin = end
        return TorchOutputs(logits if len(drawing) == begin else logits[drawing], hidden)

    def _chunk(self, row: RowStep, num_tokens: int) -> Sequence[Tensor]:
        """Write a row's first tokens: their states where wanted, else nothing."""
        if not num_tokens:
            return []
        token_ids = row.token_ids[:num_tokens]
        size = next((size for size in CHUNK_SIZES if size >= num_tokens), None)
        if size is None:
            chunk = RowStep(row.row, row.start, token_ids, wants_hidden=row.wants_hidden)
            (states,) = self._decoder.forward([chunk]).hidden
            return [] if states is None else [states]
        inputs = torch.tensor([[0], [ABSENT], [row.row]]).repeat(1, size)
        inputs[0, :num_tokens] = torch.tensor(token_ids)
        inputs[1, :num_tokens] = torch.arange(row.start, row.start + num_tokens)
        (states,) = self._of_chunks[size].run(inputs)
        return [states[:num_tokens].to(torch.float32, copy=True)] if row.wants_hidden else []

    def _all(self, tokens: Tokens) -> Sequence[Tensor]:
        """Logits [n, vocab] and states [n, hidden], to keep."""
        if len({place.row for _, place in tokens}) == len(tokens):
            return self._row_step(tokens)
        most = self._max_rows
        parts = [self._token_step(tokens[at : at + most]) for at in range(0, len(tokens), most)]
        return parts[0] if len(parts) == 1 else [*map(torch.cat, zip(*parts, strict=True))]

    def _row_step(self, tokens: Tokens) -> Sequence[Tensor]:
        """Run a step in which each row has at most one token."""
        rows = [place.row for _, place in tokens]
        inputs = torch.tensor([[0], [ABSENT]]).repeat(1, self._max_rows)
        inputs[:, rows] = torch.tensor(
            [[token_id for token_id, _ in tokens], [place.position for _, place in tokens]]
        )
        return [each[rows] for each in self._of_rows.run(inputs)]

    def _token_step(self, tokens: Tokens) -> Sequence[Tensor]:
        """Run a step of at most as many tokens as there are rows."""
        inputs = torch.tensor([[0], [ABSENT], [0], [0]]).repeat(1, self._max_rows)
        inputs[:, : len(tokens)] = torch.tensor(
            [(token_id, place.position, place.row, place.slot) for token_id, place in tokens]
        ).T
        moved = [
            (column, position, slot)
            for column, (_, place) in enumerate(tokens)
            for position, slot in enumerate(place.branch or (), place.branch_start)
            if slot != position
        ]
        places = torch.tensor(moved, device=self._device).T if moved else None
        if places is not None:
            self._slots[places[0], places[1]] = places[2]
        outputs = self._of_tokens.run(inputs)
        if places is not None:
            self._slots[places[0], places[1]] = places[1]
        return [each[: len(tokens)].clone() for each in outputs]

    def _made_by(self, make: Capture) -> tuple[StepGraphs, StepGraphs, Mapping[int, StepGraphs]]:
        """For rows of one token each, for any tokens, and for chunks by their size."""

        def steps(forward: LengthForward, num_inputs: int, num_tokens: int) -> StepGraphs:
            inputs = torch.zeros(num_inputs, num_tokens, dtype=torch.long, device=self._device)
            inputs[1] = ABSENT
            of_length = {
                length: make(partial(forward, self._lengths[: index + 1]), inputs)
                for index, length in enumerate(self._lengths)
            }
            return StepGraphs(inputs, of_length)

        return (
            steps(self._rows_forward, 2, self._max_rows),
            steps(self._tokens_forward, 4, self._max_rows),
            {size: steps(self._chunk_forward, 3, size) for size in CHUNK_SIZES},
        )

    def _rows_forward(self, lengths: Sequence[int], inputs: Tensor) -> Sequence[Tensor]:
        """Logits [max_rows, vocab] and states [max_rows, hidden] of ids and positions; those of
        absent rows mean nothing."""
        tokens, positions = inputs
        attention = FixedAttention(self._config, self._cache, positions, lengths)
        return self._decoder.at_once(tokens, positions.clamp(min=0), attention)

    def _tokens_forward(self, lengths: Sequence[int], inputs: Tensor) -> Sequence[Tensor]:
        """Logits and states of ids, positions, rows and slots."""
        tokens, places = inputs[0], inputs[1:]
        attention = FixedTokenAttention(self._config, self._cache, places, lengths, self._slots)
        return self._decoder.at_once(tokens, places[0].clamp(min=0), attention)

    def _chunk_forward(self, lengths: Sequence[int], inputs: Tensor) -> Sequence[Tensor]:
        """States [size, hidden] of ids, positions and rows, which are all the same."""
        tokens, positions, rows = inputs
        attention = FixedChunkAttention(self._config, self._cache, rows, positions, lengths[-1])
        return [self._decoder.states(tokens, positions.clamp(min=0), attention)]
