"""The tree of guesses that Medusa heads make together, on the kernels or torch."""

from collections.abc import Sequence
from heapq import nlargest
from math import prod

from inference_api.loading.config import ModelConfig
from inference_api.loading.heads import MedusaFile, TreePath

DEFAULT_PATHS = 63  # paths of the tree, if the heads' files give none
DEFAULT_RANKS = 8
RANK_DECAY = 0.4  # assumed likelihood of a guess, relative to the guess ranked before it


def tree_paths(file: MedusaFile, config: ModelConfig) -> Sequence[TreePath]:
    """Returns the paths of the heads' files, or default ones, without paths that have ranks beyond
    the vocabulary of guesses."""
    vocab_size = len(file.outputs[0]) if file.outputs else config.vocab_size
    num_tokens = vocab_size if file.token_ids is None else len(file.token_ids)
    return _within(file.paths, num_tokens) or _within(default_paths(len(file.weights)), num_tokens)


def _within(paths: Sequence[TreePath], num_ranks: int) -> Sequence[TreePath]:
    """Returns the paths in which all ranks are below `num_ranks`."""
    return [path for path in paths if max(path) < num_ranks]


def default_paths(num_heads: int) -> list[TreePath]:
    """Returns the likeliest paths, if each rank is RANK_DECAY times as likely as the one before."""

    def likelihood(path: TreePath) -> float:
        return prod([0.6 * RANK_DECAY**rank for rank in path])

    paths: list[TreePath] = []
    level: list[TreePath] = [()]
    for _ in range(num_heads):
        longer = [(*path, rank) for path in level for rank in range(DEFAULT_RANKS)]
        level = nlargest(DEFAULT_PATHS, longer, key=likelihood)
        paths += level
    return sorted(nlargest(DEFAULT_PATHS, paths, key=likelihood), key=len)
