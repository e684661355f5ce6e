"""Divides the layers with attention into groups, whose keys and values share pages.

All pages of a model have the same size, so any group can use any page. Layers of a group have the
same window, because they forget together, and heads of the same shape. Groups take about equally
many bytes.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from inference_api.kernels.packing import cached_bytes
from inference_api.loading.config import PAGE_TOKENS, CacheShape, ModelConfig

MAX_GROUPS = 12  # each has its own page table, and pages to count


class PageGroup(NamedTuple):
    """Layers, by index in this process, that attend to `window` positions; None: all."""

    window: int | None
    layers: Sequence[int]


class _Kind(NamedTuple):
    """The properties that layers of a group must share."""

    window: int | None
    cache: CacheShape

    @property
    def size(self) -> int:
        """Numbers that the cache keeps of a token."""
        return prod(self.cache)


def page_groups(config: ModelConfig, context_tokens: int) -> Sequence[PageGroup]:
    """Returns the groups of a model whose rows hold `context_tokens`.

    Processes that share a model have the same groups, each with its own layers. The layer that
    guesses further tokens comes last.
    """
    kinds: dict[_Kind, list[int]] = defaultdict(list)
    first = config.first_layer
    windows = (*(config.whole_windows or config.windows), *[None] * config.has_mtp)
    for layer, window in enumerate(windows):
        shape = config.shapes[layer] if config.shapes else config.shape_of(0)
        if shape.kv_source is not None or not config.attends(layer - first):
            continue
        window = window and window + config.window_margin
        is_whole = window is None or window >= context_tokens
        kinds[_Kind(None if is_whole else window, config.cache_shape(shape))].append(layer)
    size = _page_size({kind: len(layers) for kind, layers in kinds.items()})
    end = first + config.num_layers + config.has_mtp
    groups = []
    for kind, layers in kinds.items():
        count = _num_groups(size, kind, len(layers))
        for at in range(count):  # in turn, so that each part of a model has layers of each group
            own_layers = [layer - first for layer in layers[at::count] if first <= layer < end]
            groups.append(PageGroup(kind.window, own_layers))
    return groups


def bytes_of_pages(config: ModelConfig, groups: Sequence[PageGroup], dtype: str) -> int:
    """Returns the bytes of a page that any group can use, in a cache of this dtype."""

    def layer_bytes(layer: int) -> int:
        num_heads, num_kinds, dim = config.cache_shape(config.shape_of(layer))
        return num_heads * num_kinds * PAGE_TOKENS * cached_bytes(dtype, dim)

    return max(sum(map(layer_bytes, group.layers)) for group in groups)


def _page_size(counts: Mapping[_Kind, int]) -> int:
    """Returns how many numbers of a token a page holds, given the number of layers of each
    kind. The size wastes the least room in pages, and among equals gives the fewest groups. Waste
    without a window counts twice, because rows may be far longer."""

    def num_groups(size: int, kinds: Iterable[_Kind]) -> int:
        return sum(_num_groups(size, kind, counts[kind]) for kind in kinds)

    least = max(kind.size for kind in counts)
    sizes = {kind.size * n for kind, count in counts.items() for n in range(1, count + 1)}
    max_groups = max(MAX_GROUPS, len(counts))
    fitting = [size for size in sizes if size >= least and num_groups(size, counts) <= max_groups]
    twice = [*counts, *(kind for kind in counts if kind.window is None)]
    return min(fitting, key=lambda size: (size * num_groups(size, twice), -size))


def _num_groups(page_size: int, kind: _Kind, num_layers: int) -> int:
    return -(-num_layers // (page_size // kind.size))
