"""The KV cache as torch's decoder reads and writes it, on any device. See `engine.paged_cache`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference_api.loading.config import (
    PAGE_TOKENS,
    SPARE_SLOTS,
    ModelConfig,
    cache_capacity,
    num_pages,
)

LayerSlices = tuple[Tensor, ...]  # per layer [1, kv_heads, positions, head_dim]


class TorchCache:
    """Rows are contiguous: their pages are bound, see `PageLayout`. They begin alike within a cache
    line: vectorised kernels may add in another order when they do not, and a row's numbers must not
    depend on which row it is."""

    def __init__(
        self,
        config: ModelConfig,
        max_rows: int,
        max_seq_len: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        capacity = cache_capacity(max_seq_len + SPARE_SLOTS)
        self._pages_of_row = num_pages(max_seq_len)
        shape = (config.num_layers, max_rows, config.num_kv_heads, capacity, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))

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

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """They are there already."""
        begin = row * self._pages_of_row + first
        assert [*pages] == [*range(begin, begin + len(pages))]

    def has(self, row: int, group: int, page: int) -> bool:
        return True

    @torch.inference_mode()
    def copy_page(self, source: int, target: int) -> None:
        """See `RowMemory`."""
        from_row, from_slots = self._of_page(source)
        to_row, to_slots = self._of_page(target)
        for cache in (self.keys, self.values):
            cache[:, to_row, :, to_slots] = cache[:, from_row, :, from_slots]

    def give_back(self, pages: Sequence[int]) -> None:
        """All memory is taken at start."""

    def _of_page(self, page: int) -> tuple[int, slice]:
        """Returns the row that it is bound to, and the slots there."""
        row, at = divmod(page, self._pages_of_row)
        return row, slice(at * PAGE_TOKENS, (at + 1) * PAGE_TOKENS)

    @torch.inference_mode()
    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """See `PagedCache`."""
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
