"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), with several scalings.

Of a head's first `rotary_dim` dimensions, j and j + rotary_dim/2 form a pair that position p turns
by p * frequency[j], the pairing most Hugging Face checkpoints are stored for.
"""

import math

import torch
from torch import Tensor

from inference_api.loading.config import ModelConfig, RopeConfig

Turns = tuple[Tensor, Tensor]  # cosines and sines [n, 1, rotary_dim]


class Rope:
    """The turns of all layers, precomputed for every position of a context. Immutable."""

    def __init__(
        self, config: ModelConfig, max_seq_len: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        ropes = [rope for rope in dict.fromkeys(config.ropes) if rope is not None]
        self._tables = [
            _table(rope, config.rotary_dim, max_seq_len, device, dtype) for rope in ropes
        ]
        self._table_of = [None if rope is None else ropes.index(rope) for rope in config.ropes]

    def at(self, positions: Tensor) -> list[Turns | None]:
        """Each layer's turns for `positions` [n]; layers that turn alike have the same tensors."""
        turns = [(cos[positions], sin[positions]) for cos, sin in self._tables]
        return [None if table is None else turns[table] for table in self._table_of]


def _table(
    config: RopeConfig,
    rotary_dim: int,
    max_seq_len: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Turns:
    positions = torch.arange(max_seq_len, dtype=torch.float32)
    angles = torch.outer(positions, frequencies(config, rotary_dim, max_seq_len))
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)  # [positions, 1, rotary_dim]
    # Half of every turned pair is subtracted: the sign lives in the table.
    sign = torch.cat((-torch.ones(rotary_dim // 2), torch.ones(rotary_dim // 2)))
    cos, sin = angles.cos(), angles.sin() * sign
    return (cos * config.magnitude).to(device, dtype), (sin * config.magnitude).to(device, dtype)


def turn(heads: Tensor, turns: Turns | None) -> Tensor:
    """Apply `turns` to `heads` [n, heads, head_dim]."""
    if turns is None:
        return heads
    cos, sin = turns
    turned = heads[..., : cos.shape[-1]]
    turned = turned * cos + turned.roll(turned.shape[-1] // 2, dims=-1) * sin
    if turned.shape == heads.shape:
        return turned
    return torch.cat((turned, heads[..., turned.shape[-1] :]), dim=-1)


def frequencies(config: RopeConfig, rotary_dim: int, max_seq_len: int) -> Tensor:
    """Radians per position for each pair of dimensions, [rotary_dim / 2] float32.

    llama3 scaling (Llama 3.1 report and model code): pairs that turn less than `low_freq_factor`
    times over the original context are slowed by `factor`, those that turn more than
    `high_freq_factor` times are kept, and between them the two are mixed linearly.

    yarn (Peng et al. 2023, arXiv 2309.00071): as llama3, but the mix is linear in the pair's number
    between the pairs that turn `beta_fast` and `beta_slow` times.

    longrope (Ding et al. 2024, arXiv 2402.13753): each pair is slowed by a factor of its own, which
    is another one where `max_seq_len` exceeds the original context. So a row's keys stay what they
    are however long it grows.
    """
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    if config.kind == "longrope":
        is_long = max_seq_len > config.original_max_positions
        factors = config.long_factors if is_long else config.short_factors
        return 1.0 / (torch.tensor(factors) * config.theta**exponents)
    base = 1.0 / config.theta**exponents
    if config.kind == "default":
        return base
    slowed = base / config.factor
    if config.kind == "linear":
        return slowed
    if config.kind == "yarn":
        slowed_share = _yarn_ramp(config, rotary_dim)
        return (1.0 - slowed_share) * base + slowed_share * slowed
    full_turns = config.original_max_positions * base / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    kept = ((full_turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * base + (1.0 - kept) * slowed


def _yarn_ramp(config: RopeConfig, rotary_dim: int) -> Tensor:
    """The share of each pair that is slowed, [rotary_dim / 2]."""

    def pair_that_turns(times: float) -> float:
        turn_positions = config.original_max_positions / (times * 2 * math.pi)
        return rotary_dim * math.log(turn_positions) / (2 * math.log(config.theta))

    low, high = pair_that_turns(config.beta_fast), pair_that_turns(config.beta_slow)
    if config.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low or 0.001
    return ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
