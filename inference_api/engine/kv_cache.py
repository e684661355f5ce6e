"""The keys and values of all user rows, allocated once. Decode thread only.

Row r's positions 0…n-1 are at `keys[:, r, :, :n]`. Nothing is cleared when a row changes hands: a
reader never looks past what its own request has written.
"""

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from inference_api.kernels.packing import cache_slot
from inference_api.loading.config import ModelConfig, cache_capacity
from inference_api.loading.packing.pages import anonymous

LayerSlices = tuple[Tensor, ...]  # per layer [1, kv_heads, positions, head_dim]


class KVCache:
    """Static: `max_rows` rows of `max_seq_len` positions, every byte committed at start; or, on the
    CPU, lazy: what has not been written takes no memory.

    Rows are rounded up to a multiple of 16 positions, which makes all rows begin alike within a
    cache line. Vectorised kernels may add in another order when they do not, and a row's numbers
    must not depend on which row it is. A cache of int8, which only the kernels write and read, has
    a scale behind each key and value.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_rows: int,
        max_seq_len: int,
        device: torch.device,
        dtype: torch.dtype,
        is_lazy: bool = False,
    ) -> None:
        """Raises MemoryError."""
        capacity = cache_capacity(max_seq_len)
        slot = cache_slot(dtype.itemsize, config.head_dim)
        shape = (config.num_layers, max_rows, config.num_kv_heads, capacity, slot)
        self._memories: list[mmap.mmap] = []  # a lazy cache's keys, and its values
        if is_lazy:
            # Small pages: a huge one would take the memory of several rows for one.
            num_bytes = prod(shape) * dtype.itemsize
            self._memories = [anonymous(num_bytes, mmap.MADV_NOHUGEPAGE) for _ in range(2)]
            self.keys, self.values = (
                torch.frombuffer(memory, dtype=dtype).view(shape) for memory in self._memories
            )
            return
        # zero_ touches every page: memory that is not there is missed now, not under load.
        self.keys = torch.empty(shape, dtype=dtype, device=device).zero_()
        self.values = torch.empty(shape, dtype=dtype, device=device).zero_()

    def release_row(self, row: int) -> None:
        """Give a row's memory back, as far as it fills pages, if the cache is lazy. The row can be
        written again."""
        num_layers, max_rows = self.keys.shape[:2]
        row_bytes = self.keys[0, 0].nbytes
        for memory in self._memories:
            for layer in range(num_layers):
                begin = (layer * max_rows + row) * row_bytes
                first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
                end = (begin + row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
                if first < end:
                    memory.madvise(mmap.MADV_DONTNEED, first, end - first)

    def write_chunk(self, layer: int, row: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Positions `start`… of one row; `keys` and `values` are [tokens, kv_heads, head_dim]."""
        end = start + keys.shape[0]
        self.keys[layer, row, :, start:end] = keys.transpose(0, 1)
        self.values[layer, row, :, start:end] = values.transpose(0, 1)

    def write_step(
        self, layer: int, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """One position of each row; `keys` and `values` are [len(rows), kv_heads, head_dim]."""
        self.keys[layer, rows, :, positions] = keys
        self.values[layer, rows, :, positions] = values

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Positions 0…`num_tokens` - 1 of row `source` to row `target`, in every layer."""
        for cache in (self.keys, self.values):
            cache[:, target, :, :num_tokens] = cache[:, source, :, :num_tokens]

    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """What one row has in slots `sources` to slots `target`, `target` + 1 …, in every layer."""
        index = torch.tensor(sources, device=self.keys.device)
        for cache in (self.keys, self.values):
            cache[:, row, :, target : target + len(sources)] = cache[:, row, :, index]

    def gathered(
        self, layer: int, row: int, slots: Sequence[int], num_seen: int
    ) -> tuple[Tensor, Tensor]:
        """Copies of one row's keys and values in `slots`, cut to the last `num_seen` of them, and
        laid out as they would be in the cache had they been written one after the other."""
        _, _, kv_heads, _, slot = self.keys.shape
        index = torch.tensor(slots, device=self.keys.device)
        copies = self.keys.new_empty(2, 1, kv_heads, cache_capacity(len(slots)), slot)
        for copy, cache in zip(copies, (self.keys, self.values), strict=True):
            copy[0, :, : len(slots)] = cache[layer, row][:, index]
        keys, values = copies[:, :, :, len(slots) - num_seen : len(slots)]
        return keys, values

    def slices(self, row: int, start: int, end: int) -> tuple[LayerSlices, LayerSlices]:
        """Views of one row's keys and values from `start` to before `end`, for every layer.

        All layers at once: a view costs as much Python as a small matrix product.
        """
        keys = self.keys[:, row : row + 1, :, start:end]
        values = self.values[:, row : row + 1, :, start:end]
        return keys.unbind(0), values.unbind(0)
