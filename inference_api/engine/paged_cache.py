"""What user rows remember of their tokens: keys and values, and the states of recurrent layers, in
pages. Decode thread only.

Nothing is cleared when a page changes hands: a reader never looks past what its own row has
written.
"""

import mmap
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.kernels.interface import FLOAT32, Floats
from inference_api.kernels.packing import CACHE_BYTES, cache_slot
from inference_api.loading.config import PAGE_TOKENS, ModelConfig, num_pages
from inference_api.loading.packing.pages import advise, anonymous
from inference_api.loading.page_groups import PageGroup, bytes_of_pages

NOWHERE = -1


class PagedCache:
    """Pages of PAGE_TOKENS positions, of a group of layers, and a table of the pages that each row
    has for each group.

    Page p is `pages[p]`. Row r has position i in page `tables[group, r, i // PAGE_TOKENS]`. Memory
    is taken as it is written. A cache of int8 has a scale behind each key and value. `states[r]` is
    what row r's recurrent layers remember, layer after layer: see `PageLayout.states_of`.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_rows: int,
        max_seq_len: int,
        dtype: str,
        count: int,
        groups: Sequence[PageGroup] | None = None,
        num_guesses: int = 0,
    ) -> None:
        """`dtype`: a value of KV_CACHE_DTYPE other than auto; `count` of pages; `groups`: None for
        one of all layers. Raises MemoryError."""
        groups = groups or [PageGroup(None, range(config.num_layers))]
        page_bytes = bytes_of_pages(config, groups, CACHE_BYTES[dtype])
        state_bytes = FLOAT32.itemsize * config.state_floats
        all_pages = count + max_rows * -(-state_bytes // page_bytes)
        self._memory = anonymous(all_pages * page_bytes, mmap.MADV_HUGEPAGE)
        self.pages = np.frombuffer(self._memory, dtype).reshape(all_pages, -1)
        self.by_group = [self._as_held_by(group, config) for group in groups]
        """All pages as if each were a group's, [pages, layers, kv_heads, keys and values, or
        latents, PAGE_TOKENS, slot]."""
        states = np.frombuffer(self._memory, FLOAT32)[count * page_bytes // FLOAT32.itemsize :]
        self.states: Floats = states.reshape(max_rows, -1)
        self._num_shared = count
        log_floats = num_guesses * config.log_floats
        log = anonymous(max(max_rows * log_floats * FLOAT32.itemsize, 1))
        self.log: Floats = np.frombuffer(log, FLOAT32, max_rows * log_floats).reshape(max_rows, -1)
        """What recurrent layers note of each row's guesses, by layer: see `HearthRecurrentRows`."""
        self.kept = np.zeros(max_rows, np.int64)
        """From which position on a row's tokens of the next step are guesses."""
        self.tables = np.full((len(groups), max_rows, num_pages(max_seq_len)), NOWHERE, np.int32)
        self.places = {
            layer: (number, at)
            for number, group in enumerate(groups)
            for at, layer in enumerate(group.layers)
        }
        """The group of each layer, and which of a page's layers it is."""
        for layer, shape in enumerate(config.layer_shapes):
            if shape.kv_source is not None:
                self.places[layer] = self.places[shape.kv_source]

    def _as_held_by(self, group: PageGroup, config: ModelConfig) -> NDArray[Any]:
        shape = config.shape_of(next(iter(group.layers), 0))
        num_heads, num_kinds, dim = config.cache_shape(shape)
        slot = cache_slot(self.pages.itemsize, dim)
        sizes = (len(group.layers), num_heads, num_kinds, PAGE_TOKENS, slot)
        return self.pages[:, : prod(sizes)].reshape(len(self.pages), *sizes)

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """See `RowMemory`."""
        self.tables[group, row, first : first + len(pages)] = pages

    def has(self, row: int, group: int, page: int) -> bool:
        """Whether such a page of a row was placed."""
        return bool(self.tables[group, row, page] != NOWHERE)

    def copy_page(self, source: int, target: int) -> None:
        """See `RowMemory`."""
        self.pages[target] = self.pages[source]

    def give_back(self, pages: Sequence[int]) -> None:
        """See `RowMemory`. A part of the system's page stays until its other parts go, too.

        Where some pages stay, Linux would soon make huge pages of them and of the memory between:
        it is told not to.
        """
        if 0 < len(pages) < self._num_shared:
            advise(self._memory, mmap.MADV_NOHUGEPAGE)
        page_bytes = self.pages[0].nbytes
        for begin, end in _runs(pages):
            first = -(-begin * page_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            last = end * page_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            if first < last:
                self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """What one row has in slots `sources` to slots `target`, `target` + 1 …, in every layer."""
        from_pages, from_places = np.divmod(np.asarray(sources), PAGE_TOKENS)
        to_pages, to_places = np.divmod(np.arange(target, target + len(sources)), PAGE_TOKENS)
        for table, pages in zip(self.tables[:, row], self.by_group, strict=True):
            moved = pages[table[from_pages], :, :, :, from_places]
            pages[table[to_pages], :, :, :, to_places] = moved


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the pages as ranges of numbers that follow each other."""
    runs: list[tuple[int, int]] = []
    for page in sorted(pages):
        begin = runs.pop()[0] if runs and runs[-1][1] == page else page
        runs.append((begin, page + 1))
    return runs
