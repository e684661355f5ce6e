"""Converts shares to whole layers: to counts and ranges of nodes, and to settings of engines. Pure:
any thread.

A node's caps are exact: floor(max_weighting x layers) at most, ceil(min_weighting x layers) at
least. Many shares give the same layers; `snapped` makes them equal, so that measurements of one
split count as repeats of one point.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise, permutations
from math import ceil, floor

from weights.errors import NoPartition
from weights.search import Problem, Shares

ROUNDING = 1e-6  # layers; so that 0.3 x 10 counts as three
MAX_NEIGHBOURS = 1000  # models of the cost take memory with its square and time with its cube

Layers = tuple[int, ...]  # layers of each node, in ring order


def partition(
    shares: Sequence[float],
    num_layers: int,
    max_weightings: Sequence[float] | None = None,
    min_layers: int | Sequence[int] = 0,
) -> Layers:
    """Returns layers per node by largest remainder, within the caps. Ties go to the earlier node.

    Within the bounds, the result is nearest to shares x layers (Euclidean): the squared distance is
    a sum of convex terms, so moving one layer at a time minimises it. Raises NoPartition.
    """
    low = [min_layers] * len(shares) if isinstance(min_layers, int) else list(min_layers)
    high = [floor(cap * num_layers + ROUNDING) for cap in max_weightings or [1.0] * len(shares)]
    _check_bounds(low, high, num_layers)
    quotas = [share * num_layers for share in shares]
    layers = [
        min(max(floor(quota + ROUNDING), lowest), highest)
        for quota, lowest, highest in zip(quotas, low, high, strict=True)
    ]
    nodes = range(len(layers))
    while (missing := num_layers - sum(layers)) != 0:
        step = 1 if missing > 0 else -1
        end = high if missing > 0 else low
        open_nodes = [i for i in nodes if layers[i] != end[i]]
        layers[max(open_nodes, key=lambda i: step * (quotas[i] - layers[i]))] += step
    return tuple(layers)


def layers_of(shares: Sequence[float], problem: Problem, min_layers: int | None = 0) -> Layers:
    """Returns the layers for `shares` within the bounds of a problem, which must have `num_layers`.
    If `min_layers` is None, each node gets at least one layer, as most engines need, if the caps
    allow it."""
    num_layers = problem.num_layers
    assert num_layers is not None
    low = smallest_layers(problem.min_weightings, num_layers, min_layers or 0)
    if min_layers is None:
        caps = zip(low, problem.max_weightings, strict=True)
        raised = [max(least, min(1, floor(cap * num_layers + ROUNDING))) for least, cap in caps]
        low = raised if sum(raised) <= num_layers else low
    return partition(shares, num_layers, problem.max_weightings, low)


def smallest_layers(
    min_weightings: Sequence[float], num_layers: int, min_layers: int = 0
) -> list[int]:
    """Returns the fewest layers of each node."""
    return [max(min_layers, ceil(share * num_layers - ROUNDING)) for share in min_weightings]


def snapped(shares: Sequence[float], problem: Problem) -> Shares:
    """Returns the shares rounded to whole layers; unchanged without `num_layers`. Shares outside
    the bounds, told before these were tightened, are rounded without bounds."""
    if problem.num_layers is None:
        return tuple(shares)
    if problem.allows(shares):
        layers = layers_of(shares, problem)
    else:
        layers = partition(shares, problem.num_layers)
    return tuple(count / problem.num_layers for count in layers)


def ranges(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the contiguous [start, end) of each node, in ring order."""
    ends = [sum(layers[: node + 1]) for node in range(len(layers))]
    return [(end - count, end) for end, count in zip(ends, layers, strict=True)]


def _check_bounds(low: Sequence[int], high: Sequence[int], num_layers: int) -> None:
    for node, (lowest, highest) in enumerate(zip(low, high, strict=True)):
        if lowest > highest:
            raise NoPartition(
                f"node {node} must take {lowest} layers and its cap allows {highest} of "
                f"{num_layers}; raise max_weightings or lower min_weightings or min_layers"
            )
    if sum(high) < num_layers:
        raise NoPartition(
            f"the caps allow {sum(high)} of {num_layers} whole layers; raise max_weightings"
        )
    if sum(low) > num_layers:
        raise NoPartition(
            f"the nodes must take {sum(low)} layers and there are {num_layers}; "
            "lower min_weightings or min_layers"
        )


def neighbours(shares: Shares, problem: Problem) -> list[Shares]:
    """Returns the splits within the bounds that move one layer from one node to another. Of more
    than MAX_NEIGHBOURS it returns an even selection. `shares` must be whole layers, and the problem
    must have `num_layers`."""
    assert problem.num_layers is not None
    total = problem.num_layers
    layers = [round(share * total) for share in shares]
    low = smallest_layers(problem.min_weightings, total)
    high = [floor(cap * total + ROUNDING) for cap in problem.max_weightings]
    moves = [
        (giver, taker)
        for giver, taker in permutations(range(len(layers)), 2)
        if layers[giver] > low[giver] and layers[taker] < high[taker]
    ]
    found = []
    for giver, taker in moves[:: len(moves) // MAX_NEIGHBOURS + 1]:
        moved = layers.copy()
        moved[giver] -= 1
        moved[taker] += 1
        found.append(tuple(count / total for count in moved))
    return found


def engine_settings(layers: Sequence[int]) -> dict[str, object]:
    """Returns the setting of each engine that gives node i `layers[i]` layers, in ring order. Only
    llama.cpp supports a node without layers."""
    counts = ",".join(map(str, layers))
    split = tensor_split(layers)
    anywhere: dict[str, object] = {
        "layers": [list(layer_range) for layer_range in ranges(layers)],
        "llama_cpp": {"--tensor-split": split},
        "llama_bench": {"--tensor-split": split.replace(",", "/")},  # its comma separates tests
    }
    if 0 in layers:
        return anywhere
    return anywhere | {
        "vllm": {"VLLM_PP_LAYER_PARTITION": counts},
        "sglang": {"SGLANG_PP_LAYER_PARTITION": counts},
        "exo": {"shard_assignments": shard_assignments(layers)},
        "pipeline": {"SPLIT": counts},  # Hearth
    }


def tensor_split(layers: Sequence[int]) -> str:
    """Returns llama.cpp's proportions. It puts layer i of n, and the output as layer n, on the
    first device whose cumulative share exceeds i / (n + 1). Cuts halfway between two layers are
    safe from rounding."""
    cuts = [max(0.0, end - 0.5) for end in accumulate(layers[:-1])]
    return ",".join(f"{b - a:g}" for a, b in pairwise([0.0, *cuts, sum(layers) + 1.0]))


def shard_assignments(layers: Sequence[int]) -> list[dict[str, int]]:
    """Returns exo's shard of each rank, without names of runners and nodes."""
    return [
        {
            "device_rank": rank,
            "world_size": len(layers),
            "start_layer": start,
            "end_layer": end,
            "n_layers": sum(layers),
        }
        for rank, (start, end) in enumerate(ranges(layers))
    ]
