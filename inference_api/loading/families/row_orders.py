"""Orders of rows that checkpoints have otherwise than the kernels; see `SourceTensor`."""

from functools import cache

import numpy as np

from inference_api.loading.config import ModelConfig
from inference_api.loading.families.recurrence import RecurrentConfig


@cache
def part_by_part(num_heads: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the order of rows that hold so many of each part in turn for every head: all of the
    first part, then all of the second, and so on."""
    rows = np.arange(num_heads * sum(sizes)).reshape(num_heads, -1)
    parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    return tuple(np.concatenate([part.ravel() for part in parts]).tolist())


def rotary_order(config: ModelConfig, begin: int = 0, end: int | None = None) -> tuple[int, ...]:
    """Returns where each dimension of our heads is in a head whose rotary pairs lie side by side.

    Those pairs begin at `begin`; the head, or other rows that are ordered so, ends at `end`.
    """
    after = begin + config.rotary_dim
    pairs = (*range(begin, after, 2), *range(begin + 1, after, 2))
    return (*pairs, *range(begin), *range(after, end or config.head_dim))


def delta_order(recurrent: RecurrentConfig, name: str) -> tuple[int, ...]:
    """Returns the order of rows of a delta rule's tensor: fused ones have for each key head what
    belongs to it in turn."""
    shared = recurrent.heads // recurrent.key_heads
    keys, values = recurrent.key_dim, shared * recurrent.value_dim
    if ".in_proj_qkvz." in name:
        return part_by_part(recurrent.key_heads, (keys, keys, values, values))
    return part_by_part(recurrent.key_heads, (shared, shared)) if ".in_proj_ba." in name else ()
