"""The KV cache as torch's decoder reads and writes it, on any device. See `engine.paged_cache`."""

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
        memory: Tensor | None = None,
    ) -> None:
        """`memory` are its bytes, zeros; None: new ones."""
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
        moved = self.entries[:, from_row, :, :, from_slots]
        self.entries[:, to_row, :, :, to_slots] = moved

    def give_back(self, pages: Sequence[int]) -> None:
        """All memory is taken at start."""

    def _of_page(self, page: int) -> tuple[int, slice]:
        """Returns the row that it is bound to, and the slots there."""
        row, at = divmod(page, self._pages_of_row)
        return row, slice(at * PAGE_TOKENS, (at + 1) * PAGE_TOKENS)

    @torch.inference_mode()
    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """See `PagedCache`."""
        index = torch.tensor(sources, device=self.entries.device)
        moved = self.entries[:, row][..., index, :]
        self.entries[:, row, :, :, target : target + len(sources)] = moved
