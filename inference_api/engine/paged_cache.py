"""The KV cache of user rows, in pages: keys, values, and states of recurrent layers.

Decode thread only. Pages are not cleared when they pass to another row, because a row never reads
positions that it has not written.
"""

import mmap
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.kernels.interface import FLOAT32, Floats
from inference_api.kernels.packing import cached_bytes
from inference_api.loading.config import PAGE_TOKENS, ModelConfig, num_pages
from inference_api.loading.packing.pages import advise, anonymous
from inference_api.loading.page_groups import PageGroup, bytes_of_pages

NOWHERE = -1


class PagedCache:
    """The pages, and for each row and group a table of its pages.

    A page `pages[p]` holds PAGE_TOKENS positions of a group of layers. Row r has position i in page
    `tables[group, r, i // PAGE_TOKENS]`. Memory is taken only when it is written. An int8 cache
    stores a scale after each key and value; an int4 cache consists of groups of bytes, each of
    which begins with its scale. `states[r]` is the state of row r's recurrent layers, layer after
    layer: see `PageLayout.states_of`.
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
        """`dtype` is a value of KV_CACHE_DTYPE other than auto; `count` is the number of pages;
        `groups` None means one group of all layers. Raises MemoryError."""
        groups = groups or [PageGroup(None, range(config.num_layers))]
        page_bytes = bytes_of_pages(config, groups, dtype)
        state_bytes = FLOAT32.itemsize * config.state_floats
        all_pages = count + max_rows * -(-state_bytes // page_bytes)
        self._memory = anonymous(all_pages * page_bytes, mmap.MADV_HUGEPAGE)
        self.dtype = dtype
        element = "uint8" if dtype == "int4" else dtype
        self.pages = np.frombuffer(self._memory, element).reshape(all_pages, -1)
        self.by_group = [self._as_held_by(group, config) for group in groups]
        """For each group, all pages in its shape: [pages, layers, kv_heads, kinds (keys and values,
        or latents), PAGE_TOKENS, slot]."""
        states = np.frombuffer(self._memory, FLOAT32)[count * page_bytes // FLOAT32.itemsize :]
        self.states: Floats = states.reshape(max_rows, -1)
        self._num_shared = count
        log_floats = num_guesses * config.log_floats
        log = anonymous(max(max_rows * log_floats * FLOAT32.itemsize, 1))
        self.log: Floats = np.frombuffer(log, FLOAT32, max_rows * log_floats).reshape(max_rows, -1)
        """For each row, logs of recurrent layers about guesses: see `HearthRecurrentRows`."""
        self.kept = np.zeros(max_rows, np.int64)
        """For each row, the position of the first guess in the next step."""
        self.tables = np.full((len(groups), max_rows, num_pages(max_seq_len)), NOWHERE, np.int32)
        self.places = {
            layer: (number, at)
            for number, group in enumerate(groups)
            for at, layer in enumerate(group.layers)
        }
        """For each layer, its group and its place among the group's layers."""
        for layer, shape in enumerate(config.layer_shapes):
            if shape.kv_source is not None:
                self.places[layer] = self.places[shape.kv_source]

    def _as_held_by(self, group: PageGroup, config: ModelConfig) -> NDArray[Any]:
        shape = config.shape_of(next(iter(group.layers), 0))
        num_heads, num_kinds, dim = config.cache_shape(shape)
        slot = cached_bytes(self.dtype, dim) // self.pages.itemsize
        sizes = (len(group.layers), num_heads, num_kinds, PAGE_TOKENS, slot)
        return self.pages[:, : prod(sizes)].reshape(len(self.pages), *sizes)

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        """See `RowMemory`."""
        self.tables[group, row, first : first + len(pages)] = pages

    def has(self, row: int, group: int, page: int) -> bool:
        """Returns whether a row's page of this group was placed."""
        return bool(self.tables[group, row, page] != NOWHERE)

    def copy_page(self, source: int, target: int) -> None:
        """See `RowMemory`."""
        self.pages[target] = self.pages[source]

    def view_page(self, page: int) -> memoryview:
        """Returns the memory of a page."""
        return memoryview(self.pages[page]).cast("B")

    def give_back(self, pages: Sequence[int]) -> None:
        """See `RowMemory`. A page of the system is freed only if all cache pages in it are free.

        Linux would soon join the remaining pages and the freed memory between them into huge pages,
        so it is advised not to.
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
        """Move a row's slots `sources` to slots `target`, `target` + 1, … in every layer."""
        from_pages, from_places = np.divmod(np.asarray(sources), PAGE_TOKENS)
        to_pages, to_places = np.divmod(np.arange(target, target + len(sources)), PAGE_TOKENS)
        for table, pages in zip(self.tables[:, row], self.by_group, strict=True):
            moved = pages[table[from_pages], :, :, :, from_places]
            pages[table[to_pages], :, :, :, to_places] = moved


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the pages as ranges of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for page in sorted(pages):
        begin = runs.pop()[0] if runs and runs[-1][1] == page else page
        runs.append((begin, page + 1))
    return runs
