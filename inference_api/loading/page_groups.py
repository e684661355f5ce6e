"""Groups of layers whose keys and values share pages: of those that have attention.

Pages of a model are all of one size, so that any group can have any page. Layers that see equally
far forget together: they are in the same groups, each of which has about as many layers.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from inference_api.loading.config import ModelConfig

MAX_GROUPS = 8  # each has a table of its own, and pages to count


class PageGroup(NamedTuple):
    """Layers, by their index in this process, that see `window` positions; None: all."""

    window: int | None
    layers: Sequence[int]


def page_groups(config: ModelConfig, context_tokens: int) -> Sequence[PageGroup]:
    """Returns the groups of a model whose rows hold so many tokens.

    Processes that share a model have the same groups, of the layers that they have. The layer that
    guesses further tokens comes after the others.
    """
    kinds: dict[int | None, list[int]] = defaultdict(list)
    recurrent = config.recurrent.layers if config.recurrent else ()
    windows = (*(config.whole_windows or config.windows), *[None] * config.has_mtp)
    for layer, window in enumerate(windows):
        if layer in recurrent:
            continue
        is_whole = window is None or window >= context_tokens
        kinds[None if is_whole else window].append(layer)
    size = _group_layers({window: len(layers) for window, layers in kinds.items()})
    first = config.first_layer
    end = first + config.num_layers + config.has_mtp
    groups = []
    for window, layers in kinds.items():
        count = -(-len(layers) // size)
        for at in range(count):  # in turn, so that parts of a model have some of each
            own = [layer - first for layer in layers[at::count] if first <= layer < end]
            groups.append(PageGroup(window, own))
    return groups


def page_layers(groups: Sequence[PageGroup]) -> int:
    """Returns how many layers a page has room for."""
    return max(len(each.layers) for each in groups)


def _group_layers(counts: Mapping[int | None, int]) -> int:
    """Returns how many layers make a group where so many have each window: as few places of pages
    are empty as can be, those without a window counted twice, as rows may be far longer; and then
    groups are few."""

    def num_groups(size: int, windows: Iterable[int | None]) -> int:
        return sum(-(-counts.get(window, 0) // size) for window in windows)

    sizes = range(1, max(counts.values()) + 1)
    few = [size for size in sizes if num_groups(size, counts) <= max(MAX_GROUPS, len(counts))]
    return min(few, key=lambda size: (size * num_groups(size, (*counts, None)), -size))
