"""A decoder for some of a model's layers; other processes have the rest. Decode thread only.

Steps have the same shapes as in one process, and prompts are cut at the same places, so tokens have
the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from inference_api.engine.cuda import decoder
from inference_api.engine.cuda.draws import DRAWS
from inference_api.engine.cuda.graphs import FixedStep, LengthForward, pinned
from inference_api.engine.cuda.inputs import Lines, absent, prompt_inputs, token_inputs
from inference_api.engine.cuda.ops import STEP_LINES, Affine
from inference_api.kernels.interface import Floats
from inference_api.runner import RowStep

Layers = Callable[[Sequence[RowStep], bool], Floats]  # see `PartDecoder.layers`


class OtherLayers(Protocol):
    """The layers after these, in other processes."""

    def after(
        self, layers: Layers, rows: Sequence[RowStep], prompts: Sequence[RowStep] = ()
    ) -> Iterator[tuple[Sequence[RowStep], Floats]]:
        """Have `layers` compute each of `prompts` whole, then `rows` in parts. Yields each prompt
        and part with the residual after all layers, for its rows' `returned` tokens."""


class PartDecoder(decoder.Decoder):
    """Runs the layers of this process. With the first layer it also has the embedding and the head,
    and decodes with the help of the `others`."""

    others: OtherLayers

    def prepare(self, lengths: Sequence[int]) -> None:
        super().prepare(lengths)
        size, device = self._config.hidden_size, self._like.device
        self._read = pinned(torch.empty(max(decoder.PROMPT_SIZES), size), device)
        self._of_heads = [
            FixedStep(
                self._heads,
                absent(STEP_LINES, num_tokens, self._spare_slot),
                *(lengths[-1:], device, DRAWS, size),
            )
            for num_tokens in (self._sizes if self._config.has_ends else ())
        ]

    def _step(
        self, forward: LengthForward, num_lines: int, num_tokens: int, lengths: Sequence[int]
    ) -> FixedStep:
        inputs = absent(num_lines, num_tokens, self._spare_slot)
        residual_size = 0 if self._config.has_ends else self._config.hidden_size
        return FixedStep(forward, inputs, lengths, self._like.device, residual_size=residual_size)

    @property
    def _steps(self) -> Sequence[FixedStep]:
        return [*super()._steps, *self._of_heads]

    def try_out(self, row: RowStep) -> None:
        nothing = np.zeros((1, self._config.hidden_size), np.float32)
        self.layers([row], before=None if self._config.has_ends else nothing)
        if self._config.has_ends:
            self._run_steps(self._of_heads, token_inputs([row], [0]), [0], nothing)

    def layers(
        self, rows: Sequence[RowStep], is_prompt: bool = False, before: Floats | None = None
    ) -> Floats:
        """Returns the residual after these layers, [tokens, hidden size]; the next call overwrites
        it. `before` is the residual before them, None if the first layer is among them. A prompt is
        one row, with no more tokens than one step computes."""
        if is_prompt:
            ((row,), num_tokens) = rows, len(rows[0].token_ids)
            step = self._of_prompts[decoder.prompt_size(num_tokens)]
            after = step.run(prompt_inputs(row, 0, num_tokens), before)[0][:num_tokens]
        else:
            inputs = token_inputs(rows, [0] * len(rows))
            (after,) = self._run_steps(self._of_tokens, inputs, [0], before)
        read = self._read[: len(after)].copy_(after.float(), non_blocking=True)
        if after.is_cuda:
            torch.cuda.current_stream().synchronize()
        residual: Floats = read.numpy()
        return residual

    def _computed(
        self, rows: Sequence[RowStep], firsts: Sequence[int], wanted: Sequence[int], inputs: Lines
    ) -> tuple[Sequence[Sequence[Tensor]], Sequence[Tensor]]:
        pairs = [*zip(rows, firsts, strict=True)]
        prompts = [
            _part(row, begin, end)
            for row, first in pairs
            for begin, end in decoder.prompt_chunks(first)
        ]
        rest = [
            _part(row, first, len(row.token_ids))
            for row, first in pairs
            if first < len(row.token_ids)
        ]
        after = (residual for _, residual in self.others.after(self.layers, rest, prompts))
        before = []
        for first in firsts:
            outputs = [next(after) for _ in decoder.prompt_chunks(first)]
            before.append([self._states(each) for each in outputs if len(each)])
        if not rest:
            return before, [self._nothing[each] for each in wanted]
        ends = accumulate(len(each.token_ids) for each in rest)
        returned = [
            end - len(row.token_ids) + index
            for row, end in zip(rest, ends, strict=True)
            for index in row.returned
        ]
        residuals = np.zeros((inputs.shape[1], self._config.hidden_size), np.float32)
        residuals[returned] = np.concatenate([*after])
        return before, self._run_steps(self._of_heads, inputs, wanted, residuals)

    def _states(self, residual: Floats) -> Tensor:
        x = torch.from_numpy(residual).to(self._like)
        return super()._after_layers(x, None, None).float()

    def _after_layers(self, x: Tensor, update: Tensor | None, update_norm: Affine | None) -> Tensor:
        """Returns the residual, without the final norm."""
        return self._ops.norm_add(x, update, update_norm, None)[0]

    def _step_outputs(self, states: Tensor, num_tokens: int) -> Sequence[Tensor]:
        return [states[:num_tokens]]

    def _heads(self, lengths: Sequence[int], residual: Tensor, inputs: Tensor) -> Sequence[Tensor]:
        """Returns the outputs of a step of all layers, from the `residual`."""
        x = decoder.padded(residual.to(self._like.dtype), self._product_rows)
        states = super()._after_layers(x, None, None)
        return super()._step_outputs(states, inputs.shape[1])


def _part(row: RowStep, begin: int, end: int) -> RowStep:
    """Returns a step with tokens `begin` to `end` of a row; it draws only if they are the last."""
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
