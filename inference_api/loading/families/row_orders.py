"""Row orders of checkpoints that differ from the kernels' order; see `SourceTensor`."""

from functools import cache

import numpy as np

from inference_api.loading.config import ModelConfig
from inference_api.loading.families.recurrence import RecurrentConfig


@cache
def part_by_part(num_heads: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns an order for rows that are grouped by head, with `sizes` rows of each part: first all
    heads' rows of the first part, then of the second, and so on."""
    rows = np.arange(num_heads * sum(sizes)).reshape(num_heads, -1)
    parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    return tuple(np.concatenate([part.ravel() for part in parts]).tolist())


def rotary_order(config: ModelConfig, begin: int = 0, end: int | None = None) -> tuple[int, ...]:
    """Returns for each dimension of our heads its index in a head with rotary pairs side by side.

    The pairs begin at `begin`. `end` is the size of the head, or of other rows in this order.
    """
    after = begin + config.rotary_dim
    pairs = (*range(begin, after, 2), *range(begin + 1, after, 2))
    return (*pairs, *range(begin), *range(after, end or config.head_dim))


def delta_order(recurrent: RecurrentConfig, name: str) -> tuple[int, ...]:
    """Returns the row order of a delta rule's tensor; fused ones are grouped by key head."""
    shared = recurrent.heads // recurrent.key_heads
    keys, values = recurrent.key_dim, shared * recurrent.value_dim
    if ".in_proj_qkvz." in name:
        return part_by_part(recurrent.key_heads, (keys, keys, values, values))
    return part_by_part(recurrent.key_heads, (shared, shared)) if ".in_proj_ba." in name else ()
