"""Decode steps of fixed shape, which a CUDA graph can record. Decode thread only.

A step has a slot for every user row, in use or not. Tokens and positions are in one tensor on the
device, everything else follows from it there: the host looks at no value on the way. Short contexts
do not pay for long ones, because there is a step for each of a few lengths.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from inference_api.engine.attention import FixedAttention
from inference_api.engine.decoder import Decoder
from inference_api.engine.kv_cache import KVCache
from inference_api.engine.loading.config import ModelConfig, cache_capacity

logger = logging.getLogger(__name__)

Forward = Callable[[Tensor], Tensor]
Step = Callable[[], Tensor]
Capture = Callable[[Forward, Tensor], Step]  # see `cuda_graph.captured`

ABSENT = -1  # the position of a row that has no part in the step
LEAST_LENGTH = 128


def step_lengths(max_seq_len: int) -> list[int]:
    """How far steps read the cache, each four times as far as the one before.

    A step attends over its own length and all shorter ones: a third more than over its own alone.
    """
    lengths = [cache_capacity(max_seq_len)]
    while lengths[0] >= 4 * LEAST_LENGTH:
        lengths.insert(0, cache_capacity(-(-lengths[0] // 4)))
    return lengths


class FixedStepDecoder:
    """`Decoder`, with decode steps of fixed shape. Has its methods."""

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

    def prefill(self, row: int, start: int, token_ids: Sequence[int]) -> None:
        """Write the keys and values of one row's next tokens."""
        self._decoder.prefill(row, start, token_ids)

    def decode(
        self, token_ids: Sequence[int], rows: Sequence[int], positions: Sequence[int]
    ) -> Tensor:
        """Write tokens of any rows, those of a row in their order; logits [len(rows), vocab]
        float32 for what follows them.

        A row that has several at once, a prompt that is scored, has a pass of its own through
        `Decoder`: nobody's numbers may depend on whether there is such a row.
        """
        by_row: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            by_row.setdefault(row, []).append(index)
        logits = torch.empty(len(rows), self._config.vocab_size, device=self._inputs.device)
        for row, own in by_row.items():
            if len(own) > 1:
                logits[own] = self._decoder.decode(
                    [token_ids[i] for i in own], [row] * len(own), [positions[i] for i in own]
                )
        singles = [own[0] for own in by_row.values() if len(own) == 1]
        if singles:
            slots = [rows[i] for i in singles]
            run = self._step(
                [token_ids[i] for i in singles], slots, [positions[i] for i in singles]
            )
            logits[singles] = run()[slots]
        return logits

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
        return self._decoder.forward(tokens, positions.clamp(min=0), attention)
