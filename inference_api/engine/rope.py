"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), with several scalings.

Of a head's first `rotary_dim` dimensions, j and j + rotary_dim/2 form a pair, which position p
turns by p * frequency[j]. Most Hugging Face checkpoints are stored for this pairing. Angles are
computed in float64, and their sines and cosines are rounded once.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_api.loading.config import ModelConfig, RopeConfig
from inference_api.loading.packing.pages import anonymous

Floats = NDArray[np.float32]
Float64s = NDArray[np.float64]
BLOCK_TOKENS = 4096  # positions whose turns are computed together


class LayerTurns(NamedTuple):
    """The rotary turns of a layer at each of n positions."""

    cosines: Floats  # [n, rotary_dim]
    sines: Floats  # like cosines
    query_scales: Floats | None  # [n]: factors of turned queries


class RopeTurns:
    """The turns of a model's layers, computed in blocks as positions are reached, because a context
    may be far longer than any text. Decode thread only."""

    def __init__(self, config: ModelConfig, max_seq_len: int) -> None:
        self._max_seq_len = max_seq_len
        self._num_filled = 0
        dims = [shape.rotary_dim for shape in config.layer_shapes]
        kinds = [*zip(config.ropes, dims, strict=True)]
        self._tables = {
            (rope, rotary_dim): _Table(rope, rotary_dim, max_seq_len)
            for rope, rotary_dim in {*kinds}
            if rope is not None
        }
        self.layers: Sequence[LayerTurns | None] = [
            self._tables[kind].turns if kind in self._tables else None for kind in kinds
        ]
        """The turns of each layer at every position; None for a layer without rope. Layers with the
        same rope share arrays."""

    def reach(self, num_positions: int) -> None:
        """Compute the turns of the first `num_positions` positions, unless they are there."""
        if num_positions > self._num_filled:
            end = min(-(-num_positions // BLOCK_TOKENS) * BLOCK_TOKENS, self._max_seq_len)
            for table in self._tables.values():
                table.fill(self._num_filled, end)
            self._num_filled = end


class _Table:
    """Turns for every position. Memory is taken only when it is written."""

    def __init__(self, config: RopeConfig, rotary_dim: int, max_seq_len: int) -> None:
        shape = (2, max_seq_len, rotary_dim)
        memory = anonymous(4 * 2 * max_seq_len * rotary_dim)
        cosines, sines = np.frombuffer(memory, np.float32).reshape(shape)
        scales = np.zeros(max_seq_len, np.float32) if config.query_growth else None
        self.turns = LayerTurns(cosines, sines, scales)
        self._config = config
        self._frequencies = frequencies(config, rotary_dim, max_seq_len)
        self._magnitude = np.float32(config.magnitude)  # as GGUF files have it

    def fill(self, begin: int, end: int) -> None:
        angles = np.outer(np.arange(begin, end), self._frequencies)
        cosines = (np.cos(angles) * self._magnitude).astype(np.float32)
        sines = (np.sin(angles) * self._magnitude).astype(np.float32)
        # A turn subtracts the second dimension of a pair from the first: the table has the sign.
        self.turns.cosines[begin:end] = np.hstack((cosines, cosines))
        self.turns.sines[begin:end] = np.hstack((-sines, sines))
        if self.turns.query_scales is not None:
            contexts = np.arange(begin, end) // self._config.original_max_positions
            self.turns.query_scales[begin:end] = 1 + self._config.query_growth * np.log1p(contexts)


def frequencies(config: RopeConfig, rotary_dim: int, max_seq_len: int) -> Float64s:
    """Returns radians per position for each pair of dimensions, [rotary_dim / 2].

    llama3 scaling (Llama 3.1 report and model code): pairs that turn less than `low_freq_factor`
    times over the original context are slowed by `factor`, those that turn more than
    `high_freq_factor` times are kept, and between them the two are mixed linearly.

    yarn (Peng et al. 2023, arXiv 2309.00071): as llama3, but the mix is linear in the pair's number
    between the pairs that turn `beta_fast` and `beta_slow` times.

    proportional (Gemma 4's model code): pairs from `num_turned` on do not turn.

    longrope (Ding et al. 2024, arXiv 2402.13753): each pair is slowed by a factor of its own. There
    are two sets of factors, and `max_seq_len` decides which one is used, so that a row's keys do
    not change while it grows.
    """
    exponents = np.arange(0, rotary_dim, 2) / rotary_dim
    base: Float64s = 1.0 / config.theta**exponents
    if config.kind == "longrope":
        is_long = max_seq_len > config.original_max_positions
        factors = config.long_factors if is_long else config.short_factors
        return base / np.array(factors, np.float32)  # like the magnitude
    if config.kind == "default":
        return base
    slowed = base / config.factor
    if config.kind == "linear":
        return slowed
    if config.kind == "proportional":
        return np.where(np.arange(rotary_dim // 2) < (config.num_turned or 0), slowed, 0.0)
    if config.kind == "yarn":
        slowed_share = _yarn_ramp(config, rotary_dim)
        return (1.0 - slowed_share) * base + slowed_share * slowed
    full_turns = config.original_max_positions * base / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    kept = ((full_turns - low) / (high - low)).clip(0.0, 1.0)
    return kept * base + (1.0 - kept) * slowed


def _yarn_ramp(config: RopeConfig, rotary_dim: int) -> Float64s:
    """Returns the share by which each pair is slowed, [rotary_dim / 2]."""

    def pair_that_turns(times: float) -> float:
        turn_positions = config.original_max_positions / (times * 2 * math.pi)
        return rotary_dim * math.log(turn_positions) / (2 * math.log(config.theta))

    low, high = pair_that_turns(config.beta_fast), pair_that_turns(config.beta_slow)
    if config.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low or 0.001
    return ((np.arange(rotary_dim // 2) - low) / width).clip(0.0, 1.0)
