"""The KV cache of torch's decoder, on any device. `engine.paged_cache` is that of the kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from inference_api.loading.config import (
    KEYS_AND_VALUES,
    PAGE_TOKENS,
    SPARE_SLOTS,
    ModelConfig,
    cache_capacity,
    num_pages,
)


class TorchCache:
    """Keys and values of all rows. A row's memory is contiguous, and its pages are bound to it: see
    `PageLayout`. All rows begin at the same place within a cache line. Vectorised kernels may
    otherwise add in another order, and a row's numbers must not depend on its index."""

    def __init__(
        self,
        config: ModelConfig,
        max_rows: int,
        max_seq_len: int,
        device: torch.device,
        dtype: torch.dtype,
        memory: Tensor | None = None,
    ) -> None:
        """`memory` has its bytes, all zeros; None allocates them."""
        self.max_seq_len = max_seq_len
        self.capacity = cache_capacity(max_seq_len + SPARE_SLOTS)
        self._pages_of_row = num_pages(max_seq_len)
        of_row = (KEYS_AND_VALUES, config.num_kv_heads, self.capacity, config.head_dim)
        shape = (config.num_layers, max_rows, *of_row)
        if memory is None:
            self.entries = torch.zeros(shape, dtype=dtype, device=device)
        else:
            self.entries = memory.view(dtype).view(shape)

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """Does nothing: a row always has its pages."""
        begin = row * self._pages_of_row + first
        assert [*pages] == [*range(begin, begin + len(pages))]

    def has(self, row: int, group: int, page: int) -> bool:
        return True

    @torch.inference_mode()
    def copy_page(self, source: int, target: int) -> None:
        """See `RowMemory`."""
        from_row, from_slots = self._of_page(source)
        to_row, to_slots = self._of_page(target)
        moved = self.entries[:, from_row, :, :, from_slots]
        self.entries[:, to_row, :, :, to_slots] = moved

    def give_back(self, pages: Sequence[int]) -> None:
        """Does nothing: all memory stays allocated."""

    def _of_page(self, page: int) -> tuple[int, slice]:
        """Returns the row that a page is bound to, and its slots there."""
        row, at = divmod(page, self._pages_of_row)
        return row, slice(at * PAGE_TOKENS, (at + 1) * PAGE_TOKENS)

    @torch.inference_mode()
    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """See `PagedCache`."""
        index = torch.tensor(sources, device=self.entries.device)
        moved = self.entries[:, row][..., index, :]
        self.entries[:, row, :, :, target : target + len(sources)] = moved
