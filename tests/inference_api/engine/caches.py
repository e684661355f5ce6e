"""Caches whose rows have pages, in no order."""

from random import Random

from inference_api.engine.paged_cache import PagedCache
from inference_api.loading.config import ModelConfig, num_pages


def make_cache(config: ModelConfig, rows: int, context: int, dtype: str = "float32") -> PagedCache:
    of_row = num_pages(context)
    cache = PagedCache(config, rows, context, dtype, rows * of_row)
    pages = Random(0).sample(range(rows * of_row), rows * of_row)
    for row in range(rows):
        cache.place(row, 0, 0, pages[row * of_row : (row + 1) * of_row])
    return cache
