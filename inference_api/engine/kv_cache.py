"""The keys and values of all user rows, allocated once. Decode thread only.

Row r's positions 0…n-1 are at `keys[:, r, :, :n]`. Nothing is cleared when a row changes hands: a
reader never looks past what its own request has written.
"""

import mmap
from collections.abc import Sequence
from math import prod

import numpy as np

from inference_api.kernels.packing import CACHE_BYTES, cache_slot
from inference_api.loading.config import ModelConfig, cache_capacity
from inference_api.loading.packing.pages import anonymous


class KVCache:
    """Static: `max_rows` rows of `max_seq_len` positions, every byte committed at start; or lazy:
    what has not been written takes no memory.

    Rows are rounded up to a multiple of 16 positions, which makes all rows begin alike within a
    cache line. A cache of int8 has a scale behind each key and value.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_rows: int,
        max_seq_len: int,
        dtype: str,
        is_lazy: bool = False,
    ) -> None:
        """`dtype`: a value of KV_CACHE_DTYPE other than auto. Raises MemoryError."""
        slot = cache_slot(CACHE_BYTES[dtype], config.head_dim)
        capacity = cache_capacity(max_seq_len)
        shape = (config.num_layers, max_rows, config.num_kv_heads, capacity, slot)
        # A huge page of a lazy cache would take the memory of several rows for one.
        advice = mmap.MADV_NOHUGEPAGE if is_lazy else mmap.MADV_HUGEPAGE
        num_bytes = prod(shape) * CACHE_BYTES[dtype]
        memories = [anonymous(num_bytes, advice) for _ in range(2)]
        self.keys, self.values = (
            np.frombuffer(memory, dtype).reshape(shape) for memory in memories
        )
        self._lazy_memories = memories if is_lazy else []
        if not is_lazy:
            # Touches every page: memory that is not there is missed now, not under load.
            self.keys.fill(0)
            self.values.fill(0)

    def release_row(self, row: int) -> None:
        """Give a row's memory back, as far as it fills pages, if the cache is lazy. The row can be
        written again."""
        num_layers, max_rows = self.keys.shape[:2]
        row_bytes = self.keys[0, 0].nbytes
        for memory in self._lazy_memories:
            for layer in range(num_layers):
                begin = (layer * max_rows + row) * row_bytes
                first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
                end = (begin + row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
                if first < end:
                    memory.madvise(mmap.MADV_DONTNEED, first, end - first)

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Positions 0…`num_tokens` - 1 of row `source` to row `target`, in every layer."""
        for cache in (self.keys, self.values):
            cache[:, target, :, :num_tokens] = cache[:, source, :, :num_tokens]

    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """What one row has in slots `sources` to slots `target`, `target` + 1 …, in every layer."""
        for cache in (self.keys, self.values):
            of_row = cache[:, row]
            of_row[:, :, target : target + len(sources)] = of_row[:, :, list(sources)]
