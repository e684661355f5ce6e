"""Decode steps of fixed shape, which a CUDA graph can record. Decode thread only.

A step has a slot for every user row, in use or not. Tokens and positions are in one tensor on the
device, everything else follows from it there: the host looks at no value on the way. Short contexts
do not pay for long ones, because there is a step for each of a few lengths.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from inference_api.engine.attention import FixedAttention
from inference_api.engine.cuda_graph import captured
from inference_api.engine.decoder import Decoder
from inference_api.engine.kv_cache import KVCache
from inference_api.engine.loading.config import ModelConfig, cache_capacity
from inference_api.engine.runner import RowStep
from inference_api.engine.step_decoder import Outputs

logger = logging.getLogger(__name__)

Forward = Callable[[Tensor], Tensor]
Step = Callable[[], Tensor]
Capture = Callable[[Forward, Tensor], Step]  # see `cuda_graph.captured`

ABSENT = -1  # the position of a row that has no part in the step
LEAST_LENGTH = 128


def step_lengths(max_seq_len: int) -> list[int]:
    """Returns the lengths that steps read of the cache, each four times the one before.

    A step attends over its own length and all shorter ones: a third more than over its own alone.
    """
    lengths = [cache_capacity(max_seq_len)]
    while lengths[0] >= 4 * LEAST_LENGTH:
        lengths.insert(0, cache_capacity(-(-lengths[0] // 4)))
    return lengths


class FixedStepDecoder:
    """A `StepDecoder`: `Decoder`, with steps of fixed shape for rows that draw one token."""

    def __init__(
        self, config: ModelConfig, decoder: Decoder, cache: KVCache, lengths: Sequence[int]
    ) -> None:
        """`lengths` ascend; the last holds the longest sequence."""
        self._config = config
        self._decoder = decoder
        self._cache = cache
        self._lengths = lengths
        max_rows = cache.keys.shape[1]
        self._inputs = torch.tensor(
            [[0] * max_rows, [ABSENT] * max_rows], device=cache.keys.device
        )  # token ids; positions
        self._steps = self._made_by(partial)

    def capture(self, capture: Capture) -> None:
        """Record the steps. Where that fails they stay as they are, and the log says so."""
        self._inputs[1] = ABSENT
        try:
            self._steps = self._made_by(capture)
        except RuntimeError as error:
            logger.warning(
                "decode steps cannot be captured as CUDA graphs and are launched operation by "
                "operation, which is slower: %s",
                error,
            )

    def warm_up(self) -> None:
        self.capture(captured)

    def forward(self, rows: Sequence[RowStep]) -> Outputs:
        """See `StepDecoder`. A row that draws several tokens, a draft or a prompt that is scored,
        or wants hidden states, has a pass of its own through `Decoder`: nobody's numbers may depend
        on whether there is such a row. They are those of single steps up to rounding."""
        *begins, num_draws = accumulate((len(each.draws) for each in rows), initial=0)
        logits = torch.empty(num_draws, self._config.vocab_size, device=self._inputs.device)
        hidden: list[Tensor | None] = [None] * len(rows)
        single: list[tuple[int, int, int, int]] = []  # begin, token id, row, position
        for index, (begin, each) in enumerate(zip(begins, rows, strict=True)):
            apart = each
            if len(each.draws) == 1 and not each.wants_hidden:
                single.append((begin, each.token_ids[-1], each.row, each.positions[-1]))
                apart = RowStep(each.row, each.start, each.token_ids[:-1])
            if apart.token_ids:
                outputs = self._decoder.forward([apart])
                logits[begin : begin + len(apart.draws)] = outputs.logits
                hidden[index] = outputs.hidden[0]
        if single:
            places, token_ids, slots, positions = map(list, zip(*single, strict=True))
            logits[places] = self._step(token_ids, slots, positions)()[slots]
        return Outputs(logits, hidden)

    def _step(
        self, token_ids: Sequence[int], rows: Sequence[int], positions: Sequence[int]
    ) -> Step:
        """The shortest step that reaches these positions, with its inputs in place."""
        inputs = torch.tensor([[0], [ABSENT]]).repeat(1, self._inputs.shape[1])
        inputs[:, rows] = torch.tensor([token_ids, positions])
        self._inputs.copy_(inputs)
        index = next(i for i, length in enumerate(self._lengths) if max(positions) < length)
        return self._steps[index]

    def _made_by(self, capture: Capture) -> list[Step]:
        counts = range(1, len(self._lengths) + 1)
        return [
            capture(partial(self._forward, self._lengths[:count]), self._inputs) for count in counts
        ]

    def _forward(self, lengths: Sequence[int], inputs: Tensor) -> Tensor:
        """Logits [max_rows, vocab] of `inputs` [2, max_rows]; those of absent rows mean nothing."""
        tokens, positions = inputs
        attention = FixedAttention(self._config, self._cache, positions, lengths)
        return self._decoder.at_once(tokens, positions.clamp(min=0), attention)
