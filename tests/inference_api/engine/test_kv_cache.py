"""A cache that takes memory as it is written, and gives it back by rows."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from inference_api.engine.kv_cache import KVCache
from inference_api.kernels.packing import CACHE_BYTES
from inference_api.loading.checkpoint import load_config
from inference_api.loading.config import ModelConfig
from inference_api.settings import EMBEDDED_MODEL

ROWS = 5
MIB = 1024**2


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return load_config(EMBEDDED_MODEL)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", CACHE_BYTES)
@pytest.mark.parametrize("context", [16, 48, 128, 2048])  # rows of parts of pages, and of many
def test_released_row_can_be_written_again_and_no_other_is_touched(
    context: int, dtype: str, config: ModelConfig
) -> None:
    cache = KVCache(config, ROWS, context, dtype, is_lazy=True)
    for each in (cache.keys, cache.values):
        assert not each.any()
        each.fill(1)
    cache.release_row(2)
    others = [0, 1, 3, 4]
    for each in (cache.keys, cache.values):
        assert (each[:, others] == 1).all()
        gone = np.count_nonzero(each[:, 2] == 0) * each.itemsize
        pages_bytes = each[0, 2].nbytes - 2 * mmap.PAGESIZE  # the ends may be parts of pages
        assert gone >= config.num_layers * pages_bytes
        each[:, 2] = 2
        assert (each[:, 2] == 2).all()
        assert (each[:, others] == 1).all()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
def test_memory_is_taken_as_it_is_written_and_given_back(config: ModelConfig) -> None:
    before = resident_bytes()
    cache = KVCache(config, 64, 2048, "float32", is_lazy=True)
    row_bytes = 2 * config.num_layers * cache.keys[0, 0].nbytes
    assert resident_bytes() - before < MIB
    for each in (cache.keys, cache.values):
        each[:, 7] = 1
    assert abs(resident_bytes() - before - row_bytes) < MIB
    cache.release_row(7)
    assert resident_bytes() - before < MIB
    cache.keys.fill(1)
    del each, cache
    assert resident_bytes() - before < MIB


def test_rows_that_are_not_lazy_stay_as_they_are(config: ModelConfig) -> None:
    cache = KVCache(config, ROWS, 128, "float32")
    cache.keys.fill(1)
    cache.release_row(2)
    assert (cache.keys == 1).all()


def test_memory_that_is_not_there_is_an_error_of_its_own(config: ModelConfig) -> None:
    with pytest.raises(MemoryError):
        KVCache(config, 1, 1 << 40, "float32", is_lazy=True)


@pytest.mark.parametrize("dtype", CACHE_BYTES)
def test_copied_and_moved_positions_are_those_of_the_row(dtype: str, config: ModelConfig) -> None:
    cache = KVCache(config, ROWS, 48, dtype)
    for each in (cache.keys, cache.values):
        each[...] = np.arange(each.size).reshape(each.shape) % 101
    before = cache.keys.copy(), cache.values.copy()
    cache.copy_prefix(3, 1, 20)
    cache.move(1, [7, 11, 12], 5)
    for each, old in zip((cache.keys, cache.values), before, strict=True):
        expected = old.copy()
        expected[:, 1, :, :20] = old[:, 3, :, :20]
        for place, slot in enumerate([7, 11, 12]):
            expected[:, 1, :, 5 + place] = old[:, 3, :, slot]
        assert np.array_equal(each, expected)
