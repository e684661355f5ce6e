"""Whole-layer splits: the moves between them."""

from itertools import permutations
from math import floor

from weights.partition import ROUNDING, smallest_layers
from weights.search import Problem, Shares


def neighbours(shares: Shares, problem: Problem) -> list[Shares]:
    """Returns all splits within the bounds that move one layer from one node to another. `shares`
    are whole layers already; the problem must have `num_layers`."""
    assert problem.num_layers is not None
    total = problem.num_layers
    layers = [round(share * total) for share in shares]
    low = smallest_layers(problem.min_weightings, total)
    high = [floor(cap * total + ROUNDING) for cap in problem.max_weightings]
    found = []
    for giver, taker in permutations(range(len(layers)), 2):
        if layers[giver] > low[giver] and layers[taker] < high[taker]:
            moved = layers.copy()
            moved[giver] -= 1
            moved[taker] += 1
            found.append(tuple(count / total for count in moved))
    return found
