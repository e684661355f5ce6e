"""The decoder of some of a model's layers, whose others are in other processes. Decode thread only.

Steps have the same shapes as in one process, and prompts are cut at the same places: tokens have
the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from inference_api.engine.cuda.decoder import (
    PROMPT_SIZES,
    Decoder,
    padded,
    prompt_chunks,
    prompt_size,
)
from inference_api.engine.cuda.draws import DRAWS, WAY_LINES
from inference_api.engine.cuda.graphs import FixedStep, LengthForward, pinned, token_sizes
from inference_api.engine.cuda.inputs import Numbers, absent, prompt_inputs, token_inputs
from inference_api.engine.cuda.ops import NUM_LINES
from inference_api.kernels.interface import Floats
from inference_api.runner import RowStep

Layers = Callable[[Sequence[RowStep], bool], Floats]  # see `PartDecoder.layers`


class OtherLayers(Protocol):
    """The layers after these."""

    def after(
        self, layers: Layers, rows: Sequence[RowStep], prompts: Sequence[RowStep] = ()
    ) -> Iterator[tuple[Sequence[RowStep], Floats]]:
        """Have `layers` compute each of `prompts` at once, then `rows` in parts. Yields each of
        these with the residual after all layers, of the tokens that are returned."""


class PartDecoder(Decoder):
    """Has the embedding and the head too if it has the first layer. It then decodes, by the
    `others`."""

    others: OtherLayers

    def prepare(self, lengths: Sequence[int]) -> None:
        super().prepare(lengths)
        size, device = self._config.hidden_size, self._like.device
        self._read = pinned(torch.empty(max(PROMPT_SIZES), size), device)
        most = self._num_tokens
        self._of_heads: Sequence[FixedStep] = []
        if self._config.has_ends:
            self._of_heads = [
                FixedStep(
                    self._heads,
                    absent(NUM_LINES + WAY_LINES, num_tokens, self._spare_slot),
                    *(lengths[-1:], device, DRAWS, size),
                )
                for num_tokens in (token_sizes(most) if self._ops.is_of_any_size else [most])
            ]

    def _step(
        self, forward: LengthForward, num_lines: int, num_tokens: int, lengths: Sequence[int]
    ) -> FixedStep:
        inputs = absent(num_lines, num_tokens, self._spare_slot)
        made_size = 0 if self._config.has_ends else self._config.hidden_size
        return FixedStep(forward, inputs, lengths, self._like.device, made_size=made_size)

    @property
    def _steps(self) -> Sequence[FixedStep]:
        return [*super()._steps, *self._of_heads]

    def try_out(self, row: RowStep) -> None:
        nothing = np.zeros((1, self._config.hidden_size), np.float32)
        self.layers([row], before=None if self._config.has_ends else nothing)
        if self._config.has_ends:
            self._draw([0], np.empty((0, 1)), nothing)

    def layers(
        self, rows: Sequence[RowStep], is_prompt: bool = False, before: Floats | None = None
    ) -> Floats:
        """Returns the residual after these layers, [tokens, hidden size]; the next call overwrites
        it. `before`: the residual before them, unless the first is among them. A prompt is one row
        of at most as many tokens as are computed at once."""
        if is_prompt:
            ((row,), num_tokens) = rows, len(rows[0].token_ids)
            inputs = prompt_inputs(row, 0, num_tokens, num_tokens, self._spare_slot)
            step = self._of_prompts[prompt_size(num_tokens)]
            after = step.run(inputs, slice(num_tokens), made=before)[0][:num_tokens]
        else:
            inputs = token_inputs(rows, [0] * len(rows))
            (after,) = self._tokens(inputs, [0], np.empty((0, inputs.shape[1])), before)
        read = self._read[: len(after)].copy_(after.float(), non_blocking=True)
        if after.is_cuda:
            torch.cuda.current_stream().synchronize()
        residual: Floats = read.numpy()
        return residual

    def _computed(
        self, rows: Sequence[RowStep], firsts: Sequence[int], wanted: Sequence[int], ways: Numbers
    ) -> tuple[Sequence[Sequence[Tensor]], Sequence[Tensor]]:
        pairs = [*zip(rows, firsts, strict=True)]
        prompts = [
            _part(row, begin, end) for row, first in pairs for begin, end in prompt_chunks(first)
        ]
        rest = [
            _part(row, first, len(row.token_ids))
            for row, first in pairs
            if first < len(row.token_ids)
        ]
        after = (residual for _, residual in self.others.after(self.layers, rest, prompts))
        before = []
        for first in firsts:
            own = [next(after) for _ in prompt_chunks(first)]
            before.append([self._states(each) for each in own if len(each)])
        if not rest:
            return before, [self._nothing[each] for each in wanted]
        ends = accumulate(len(each.token_ids) for each in rest)
        returned = [
            end - len(row.token_ids) + index
            for row, end in zip(rest, ends, strict=True)
            for index in row.returned
        ]
        made = np.zeros((ways.shape[1], self._config.hidden_size), np.float32)
        made[returned] = np.concatenate([*after])
        return before, self._draw(wanted, ways, made)

    def _draw(self, wanted: Sequence[int], ways: Numbers, made: Floats) -> Sequence[Tensor]:
        inputs = np.zeros((NUM_LINES, len(made)), np.int32)
        return self._in_steps(self._of_heads, inputs, wanted, ways, made)

    def _states(self, residual: Floats) -> Tensor:
        x = torch.from_numpy(residual).to(self._like)
        return self._ops.norm_add(x, None, None, self._final_norm)[1].float()

    def _token_outputs(
        self, is_in_order: bool, lengths: Sequence[int], made: Tensor | None, inputs: Tensor
    ) -> Sequence[Tensor]:
        """The residual [n, hidden]."""
        tokens = self._ops.tokens(inputs, lengths, is_in_order)
        return [self._through(inputs, made, tokens, self._num_given)[0][: inputs.shape[1]]]

    def prompt_states(
        self, lengths: Sequence[int], made: Tensor | None, inputs: Tensor
    ) -> Sequence[Tensor]:
        """The residual [n, hidden]."""
        tokens = self._ops.prompt(inputs, lengths[-1])
        return [self._through(inputs, made, tokens, inputs.shape[1])[0]]

    def _heads(
        self, lengths: Sequence[int], made: Tensor | None, inputs: Tensor
    ) -> Sequence[Tensor]:
        """As a step of all layers puts out."""
        assert made is not None
        x = padded(made.to(self._like.dtype), self._num_given)
        states = self._ops.norm_add(x, None, None, self._final_norm)[1]
        return self._headed(states, inputs.shape[1])


def _part(row: RowStep, begin: int, end: int) -> RowStep:
    """Returns the step of these tokens of a row; those before draw nothing."""
    if begin == 0 and end == len(row.token_ids):
        return row
    parents = row.parents
    return replace(
        row,
        start=row.start + begin,
        token_ids=row.token_ids[begin:end],
        draws=row.draws if end == len(row.token_ids) else (),
        parents=None if parents is None else [max(each - begin, -1) for each in parents[begin:end]],
    )
