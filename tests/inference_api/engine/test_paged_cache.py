"""Pages take memory as they are written and give it back; rows find their positions in any."""

import mmap
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inference_api.engine.paged_cache import PagedCache
from inference_api.kernels.packing import CACHE_DTYPES
from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import PAGE_TOKENS, ModelConfig
from inference_api.loading.page_groups import PageGroup
from inference_api.settings import EMBEDDED_MODEL

ROWS = 3
CONTEXT = 3 * PAGE_TOKENS
MIB = 1024**2


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return load_config(EMBEDDED_MODEL)


def make_cache(config: ModelConfig, count: int, dtype: str = "float32") -> PagedCache:
    return PagedCache(config, ROWS, CONTEXT, dtype, count)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", CACHE_DTYPES)
@pytest.mark.parametrize("given_back", [[4], [2, 3, 4], [9, 5, 0, 4, 6], []])
def test_pages_that_are_given_back_can_be_written_again_and_no_other_is_touched(
    given_back: list[int], dtype: str, config: ModelConfig
) -> None:
    cache = make_cache(config, 10, dtype)
    assert not cache.pages.any()
    cache.pages.fill(1)
    cache.give_back(given_back)
    others = [page for page in range(10) if page not in given_back]
    assert (cache.pages[others] == 1).all()
    cache.pages[given_back] = 2
    assert (cache.pages[given_back] == 2).all()
    assert (cache.pages[others] == 1).all()


@pytest.mark.parametrize("dtype", CACHE_DTYPES)
def test_whole_pages_of_the_system_are_given_back(dtype: str, config: ModelConfig) -> None:
    """A page of int8 is no multiple of the system's: the borders of a run stay, and what neighbours
    have there."""
    cache = make_cache(config, 10, dtype)
    cache.pages.fill(1)
    cache.give_back([6, 3, 5, 4])
    kept = np.count_nonzero(cache.pages[3:7]) * cache.pages.itemsize
    page_bytes = cache.pages[0].nbytes
    assert kept == -3 * page_bytes % mmap.PAGESIZE + 7 * page_bytes % mmap.PAGESIZE


def test_memory_is_taken_as_it_is_written_and_given_back(config: ModelConfig) -> None:
    count = 4096
    before = resident_bytes()
    cache = make_cache(config, count)
    half_bytes = cache.pages.nbytes // 2
    assert resident_bytes() - before < MIB
    cache.pages[: count // 2] = 1
    assert abs(resident_bytes() - before - half_bytes) < 3 * MIB  # the system's may be of 2 MiB
    cache.give_back(range(count // 2))
    assert resident_bytes() - before < 3 * MIB
    cache.pages.fill(1)
    del cache
    assert resident_bytes() - before < MIB


def flags_of(address: int) -> list[str]:
    """What Linux says of the memory there: hg, it may make huge pages of it; nh, it may not."""
    for mapping in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        begin, end = (int(each, 16) for each in mapping.split(maxsplit=1)[0].split("-"))
        if begin <= address < end:
            return mapping.rpartition("VmFlags:")[2].split()
    raise AssertionError("no memory is there")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="none")
def test_what_is_given_back_does_not_come_again_with_its_neighbours(config: ModelConfig) -> None:
    """Half a minute later, Linux would make huge pages of those that stay and of holes."""
    cache = make_cache(config, 64)
    address = cache.pages.ctypes.data
    cache.pages.fill(1)
    cache.give_back(range(64))  # as after warm-up
    cache.give_back([])
    assert "hg" in flags_of(address)
    cache.pages.fill(1)
    cache.give_back(range(0, 64, 2))
    assert "nh" in flags_of(address)


def test_memory_that_is_not_there_is_an_error_of_its_own(config: ModelConfig) -> None:
    with pytest.raises(MemoryError):
        make_cache(config, 1 << 40)


@pytest.mark.parametrize("dtype", CACHE_DTYPES)
def test_a_page_is_copied_whole(dtype: str, config: ModelConfig) -> None:
    cache = numbered(config, dtype)
    before = cache.pages.copy()
    cache.copy_page(3, 7)
    assert np.array_equal(cache.pages[7], before[3])
    others = [page for page in range(len(before)) if page != 7]
    assert np.array_equal(cache.pages[others], before[others])


def numbered(config: ModelConfig, dtype: str) -> PagedCache:
    cache = make_cache(config, 9, dtype)
    cache.pages[...] = np.arange(cache.pages.size).reshape(cache.pages.shape) % 101
    return cache


@pytest.mark.parametrize("dtype", CACHE_DTYPES)
@pytest.mark.parametrize("table", [[0, 1, 2], [7, 2, 4]])
@pytest.mark.parametrize(
    ("sources", "target"), [([7, 11, 12], 5), ([33, 40, 64, 65], 30), ([63, 64], 62)]
)
def test_positions_move_within_a_row_and_across_its_pages(
    sources: list[int], target: int, table: list[int], dtype: str, config: ModelConfig
) -> None:
    cache = numbered(config, dtype)
    cache.place(1, 0, 0, table)
    [pages] = cache.by_group
    expected = pages.copy()
    for slot, source in enumerate(sources, target):
        moved = pages[table[source // PAGE_TOKENS], :, :, :, source % PAGE_TOKENS]
        expected[table[slot // PAGE_TOKENS], :, :, :, slot % PAGE_TOKENS] = moved
    cache.move(1, sources, target)
    assert np.array_equal(pages, expected)


def test_a_row_has_the_pages_that_were_placed(config: ModelConfig) -> None:
    cache = make_cache(config, 9)
    assert not cache.has(1, 0, 0)
    cache.place(1, 0, 0, [8])
    assert cache.has(1, 0, 0)
    assert not cache.has(1, 0, 1)
    cache.place(1, 0, 1, [3, 5])
    assert cache.has(1, 0, 2)
    assert not cache.has(2, 0, 0)
    assert cache.tables[0, 1].tolist() == [8, 3, 5]


def test_groups_of_layers_have_pages_of_their_own(config: ModelConfig) -> None:
    groups = [PageGroup(None, [1, 3]), PageGroup(7, [0, 2]), PageGroup(7, [4])]
    cache = PagedCache(config, ROWS, CONTEXT, "float32", 9, groups)
    assert cache.places == {1: (0, 0), 3: (0, 1), 0: (1, 0), 2: (1, 1), 4: (2, 0)}
    assert [each.shape[:2] for each in cache.by_group] == [(9, 2), (9, 2), (9, 1)]
    cache.pages[...] = np.arange(cache.pages.size).reshape(cache.pages.shape)
    before, tables = cache.pages.copy(), ([0, 1], [8, 3], [5, 2])
    expected = [pages.copy() for pages in cache.by_group]
    for group, (first, second) in enumerate(tables):
        cache.place(1, group, 0, [first, second])
        expected[group][first, :, :, :, 31] = expected[group][second, :, :, :, 1]
    cache.move(1, [33], 31)
    for pages, moved, table in zip(cache.by_group, expected, tables, strict=True):
        assert np.array_equal(pages[table], moved[table])
    assert np.array_equal(cache.pages[[4, 6, 7]], before[[4, 6, 7]])


def test_layers_of_a_group_have_one_shape_and_groups_their_own(config: ModelConfig) -> None:
    """A page has room for the widest group's."""
    usual = config.shape_of(0)
    wide = usual._replace(num_kv_heads=1, head_dim=3 * usual.head_dim)
    config = replace(config, shapes=(wide, *[usual] * (config.num_layers - 1)))
    groups = [PageGroup(None, [0]), PageGroup(None, [1, 2])]
    cache = PagedCache(config, ROWS, CONTEXT, "float32", 4, groups)
    narrow = (4, 2, usual.num_kv_heads, 2, PAGE_TOKENS, usual.head_dim)
    assert [each.shape for each in cache.by_group] == [
        (4, 1, 1, 2, PAGE_TOKENS, wide.head_dim),
        narrow,
    ]
    assert cache.pages[0].size == max(np.prod(each.shape[1:]) for each in cache.by_group)
    assert all(np.shares_memory(each, cache.pages) for each in cache.by_group)
