"""Groups of layers whose keys and values share pages: of those that have attention.

Pages of a model are all of one size, so that any group can have any page. Layers that see equally
far forget together: they are in the same groups, each of which has about as many bytes. Layers of a
group have heads of one shape.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from inference_api.kernels.packing import cache_slot
from inference_api.loading.config import PAGE_TOKENS, CacheShape, ModelConfig

MAX_GROUPS = 12  # each has a table of its own, and pages to count


class PageGroup(NamedTuple):
    """Layers, by their index in this process, that see `window` positions; None: all."""

    window: int | None
    layers: Sequence[int]


class _Kind(NamedTuple):
    """What layers have in common that may be in one group."""

    window: int | None
    cache: CacheShape

    @property
    def size(self) -> int:
        """Numbers that are kept of a token."""
        return prod(self.cache)


def page_groups(config: ModelConfig, context_tokens: int) -> Sequence[PageGroup]:
    """Returns the groups of a model whose rows hold so many tokens.

    Processes that share a model have the same groups, of the layers that they have. The layer that
    guesses further tokens comes after the others.
    """
    kinds: dict[_Kind, list[int]] = defaultdict(list)
    first = config.first_layer
    windows = (*(config.whole_windows or config.windows), *[None] * config.has_mtp)
    for layer, window in enumerate(windows):
        shape = config.shapes[layer] if config.shapes else config.shape_of(0)
        if shape.kv_source is not None or not config.attends(layer - first):
            continue
        is_whole = window is None or window >= context_tokens
        kinds[_Kind(None if is_whole else window, config.cache_shape(shape))].append(layer)
    size = _page_size({kind: len(layers) for kind, layers in kinds.items()})
    end = first + config.num_layers + config.has_mtp
    groups = []
    for kind, layers in kinds.items():
        count = _num_groups(size, kind, len(layers))
        for at in range(count):  # in turn, so that parts of a model have some of each
            held = [layer - first for layer in layers[at::count] if first <= layer < end]
            groups.append(PageGroup(kind.window, held))
    return groups


def bytes_of_pages(config: ModelConfig, groups: Sequence[PageGroup], element_bytes: int) -> int:
    """Size of a page that any of the groups can have, in a cache of such elements."""

    def layer_bytes(layer: int) -> int:
        num_heads, num_kinds, dim = config.cache_shape(config.shape_of(layer))
        return num_heads * num_kinds * PAGE_TOKENS * cache_slot(element_bytes, dim) * element_bytes

    return max(sum(map(layer_bytes, group.layers)) for group in groups)


def _page_size(counts: Mapping[_Kind, int]) -> int:
    """Returns how many numbers of a token fit into a page where there are so many
    layers of each kind: as few places of pages are empty as can be, those without a window counted
    twice, as rows may be far longer; and then groups are few."""

    def num_groups(size: int, kinds: Iterable[_Kind]) -> int:
        return sum(_num_groups(size, kind, counts[kind]) for kind in kinds)

    least = max(kind.size for kind in counts)
    sizes = {kind.size * n for kind, count in counts.items() for n in range(1, count + 1)}
    most_groups = max(MAX_GROUPS, len(counts))
    few = [size for size in sizes if size >= least and num_groups(size, counts) <= most_groups]
    twice = [*counts, *(kind for kind in counts if kind.window is None)]
    return min(few, key=lambda size: (size * num_groups(size, twice), -size))


def _num_groups(page_size: int, kind: _Kind, num_layers: int) -> int:
    return -(-num_layers // (page_size // kind.size))
