"""Builds a tree of guesses from what heads guessed on answers, and evaluates trees.

A path (r0, r1, …) is the token of rank r0 of head 0, after it that of rank r1 of head 1, and so on.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from inference_api.loading.heads import TreePath

MAX_PATHS = 63  # with the root 64 tokens
MAX_RANKS = 10
NOT_GUESSED = -1


def ranks(guesses: Tensor, continuations: Tensor) -> Tensor:
    """Returns the rank that each head gave the token that came.

    `guesses` [positions, heads, ranks] and `continuations` [positions, heads]. Returns [positions,
    heads], NOT_GUESSED where the token is not among the guesses.
    """
    is_right = guesses == continuations.unsqueeze(-1)
    return torch.where(is_right.any(-1), is_right.int().argmax(-1), NOT_GUESSED)


def most_frequent_paths(
    position_ranks: Iterable[Sequence[int]], count: int = MAX_PATHS
) -> list[TreePath]:
    """Returns the paths that would have been right most often, each after its beginning.

    A path's beginning is right at least as often as the path, so the set is a tree. Of equally
    frequent paths the shorter come first.
    """
    counts: Counter[TreePath] = Counter()
    for heads in position_ranks:
        for path in prefixes(heads):
            counts[path] += 1
    ordered = sorted(counts, key=lambda path: (-counts[path], len(path), path))
    return ordered[:count]


def prefixes(heads: Sequence[int]) -> list[TreePath]:
    """Returns the paths that are right at a position with these ranks, the shortest first."""
    found: list[TreePath] = []
    for rank in heads:
        if rank == NOT_GUESSED:
            break
        found.append((*(found[-1] if found else ()), rank))
    return found


def chain(depth: int) -> list[TreePath]:
    """Returns the path of each head's likeliest guess."""
    return [(0,) * (length + 1) for length in range(depth)]


def tokens_per_step(
    paths: Collection[TreePath], answers: Iterable[Sequence[Sequence[int]]]
) -> float:
    """Returns the mean tokens of a step that decodes these answers with the tree of `paths`.

    An answer is the ranks of its positions. A step emits the token that is certain and those of the
    deepest path that is right, and the next one begins behind them: this is the decoding itself,
    as long as a drafted token has the bits of a single step.
    """
    tree = frozenset(paths)
    num_tokens = num_steps = 0
    for positions in answers:
        at = 0
        while at < len(positions):
            at += 1 + sum(path in tree for path in prefixes(positions[at]))
            num_steps += 1
        num_tokens += len(positions)
    return num_tokens / num_steps
