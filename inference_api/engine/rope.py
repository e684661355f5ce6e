"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) with linear and llama3 scaling.

Head dimensions j and j + head_dim/2 form a pair that position p turns by p * frequency[j], the
pairing Hugging Face checkpoints are stored for.
"""

import math

import torch
from torch import Tensor

from inference_api.engine.loading.config import RopeConfig


class Rope:
    """Precomputed turns for every position of a context. Immutable."""

    def __init__(
        self,
        config: RopeConfig,
        head_dim: int,
        max_seq_len: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        positions = torch.arange(max_seq_len, dtype=torch.float32)
        angles = torch.outer(positions, frequencies(config, head_dim))
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)  # [positions, 1, head_dim]
        # Half of every turned pair is subtracted: the sign lives in the table.
        sign = torch.cat((-torch.ones(head_dim // 2), torch.ones(head_dim // 2)))
        self._cos = angles.cos().to(device, dtype)
        self._sin = (angles.sin() * sign).to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Turns for `positions` [n], as [n, 1, head_dim] each."""
        return self._cos[positions], self._sin[positions]


def turn(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Apply `turns` to `heads` [n, heads, head_dim]."""
    cos, sin = turns
    return heads * cos + heads.roll(heads.shape[-1] // 2, dims=-1) * sin


def frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position for each pair of dimensions, [head_dim / 2] float32.

    llama3 scaling (Llama 3.1 report and model code): pairs that turn less than `low_freq_factor`
    times over the original context are slowed by `factor`, those that turn more than
    `high_freq_factor` times are kept, and between them the two are mixed linearly.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    base = 1.0 / config.theta**exponents
    if config.kind == "default":
        return base
    slowed = base / config.factor
    if config.kind == "linear":
        return slowed
    full_turns = config.original_max_positions * base / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    kept = ((full_turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * base + (1.0 - kept) * slowed
