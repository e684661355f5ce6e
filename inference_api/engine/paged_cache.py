"""What user rows remember of their tokens: keys and values, in pages. Decode thread only.

Nothing is cleared when a page changes hands: a reader never looks past what its own row has
written.
"""

import mmap
from collections.abc import Sequence
from math import prod

import numpy as np

from inference_api.kernels.packing import CACHE_BYTES, cache_slot
from inference_api.loading.config import KEYS_AND_VALUES, PAGE_TOKENS, ModelConfig, num_pages
from inference_api.loading.packing.pages import anonymous


class PagedCache:
    """Pages of PAGE_TOKENS positions, of all layers, and a table of the pages that each row has.

    Page p is `pages[p]`, [layers, kv_heads, keys and values, PAGE_TOKENS, slot]: copied as one
    piece of memory. Row r has position i in page `tables[r, i // PAGE_TOKENS]`. Memory is taken as it
    is written. A cache of int8 has a scale behind each key and value.
    """

    def __init__(self, config: ModelConfig, max_rows: int, max_seq_len: int, dtype: str) -> None:
        """`dtype`: a value of KV_CACHE_DTYPE other than auto. Raises MemoryError."""
        slot = cache_slot(CACHE_BYTES[dtype], config.head_dim)
        of_row = num_pages(max_seq_len)
        of_layer = (config.num_kv_heads, KEYS_AND_VALUES, PAGE_TOKENS, slot)
        shape = (max_rows * of_row, config.num_layers, *of_layer)
        self._memory = anonymous(prod(shape) * CACHE_BYTES[dtype], mmap.MADV_HUGEPAGE)
        self.pages = np.frombuffer(self._memory, dtype).reshape(shape)
        self.tables = np.arange(max_rows * of_row, dtype=np.int32).reshape(max_rows, of_row)

    def release_row(self, row: int) -> None:
        """Give a row's memory back, as far as it fills the system's pages. The row can be written
        again."""
        page_bytes = self.pages[0].nbytes
        for page in self.tables[row]:
            begin = int(page) * page_bytes
            first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (begin + page_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if first < end:
                self._memory.madvise(mmap.MADV_DONTNEED, first, end - first)

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Positions 0…`num_tokens` - 1 of row `source` to row `target`, in every layer."""
        last = num_pages(num_tokens)
        self.pages[self.tables[target, :last]] = self.pages[self.tables[source, :last]]

    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """What one row has in slots `sources` to slots `target`, `target` + 1 …, in every layer."""
        from_pages, from_places = self._at(row, np.asarray(sources))
        to_pages, to_places = self._at(row, np.arange(target, target + len(sources)))
        moved = self.pages[from_pages, :, :, :, from_places]
        self.pages[to_pages, :, :, :, to_places] = moved

    def _at(self, row: int, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the page of each slot, and its place there."""
        return self.tables[row, slots // PAGE_TOKENS], slots % PAGE_TOKENS
