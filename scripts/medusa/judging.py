"""Judges heads: finds how often they are right, the best tree of guesses, and how many tokens a
step makes with it.

A path (r0, r1, ...) stands for the guess of rank r0 by head 0, then that of rank r1 by head 1, etc.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from inference_api.loading.heads import TreePath

from .answers import IGNORED, Positions, TrainingAnswer
from .heads import Heads

TOP = (1, 2, 4, 8)
TREE_NODES = (4, 8, 16, 32, 64)  # sizes of trees, with the root
LEAST_MARGIN = 0.05
MAX_PATHS = 63  # 64 tokens with the root
MAX_RANKS = 10
NOT_GUESSED = -1


@dataclass(frozen=True, slots=True)
class Judgement:
    """How well heads guess held-out answers. `top` has for each head the shares of right tokens
    among its first TOP guesses. `trivial` is head 0's share for guesses without heads."""

    top: list[list[float]]
    trivial: float
    tokens_by_nodes: dict[int, float]
    tokens_by_chain: dict[int, float]
    answers: int
    positions: int


def answer_ranks(heads: Heads, token_ids: Tensor, positions: Positions) -> list[Tensor]:
    """Returns for each answer the ranks [positions, heads] that heads gave to the drawn tokens."""
    guesses = heads.guesses(positions.hidden, min(MAX_RANKS, len(token_ids)))
    found = ranks(token_ids[guesses], positions.continuations(heads.num_heads))
    return list(found.split(positions.lengths.tolist()))


def judged(
    paths: Sequence[TreePath], held_out: Sequence[Tensor], positions: Positions
) -> Judgement:
    all_ranks = torch.cat(list(held_out))
    num_heads = all_ranks.shape[1]
    labels = positions.continuations(num_heads)
    answers = [ranks_of_answer.tolist() for ranks_of_answer in held_out]
    return Judgement(
        top=[[_share(all_ranks[:, k], labels[:, k], top) for top in TOP] for k in range(num_heads)],
        trivial=trivial_accuracy(positions),
        tokens_by_nodes={
            nodes: tokens_per_step(paths[: nodes - 1], answers)
            for nodes in TREE_NODES
            if nodes - 1 <= len(paths)
        },
        tokens_by_chain={
            depth: tokens_per_step(chain(depth), answers) for depth in range(1, num_heads + 1)
        },
        answers=len(answers),
        positions=len(positions),
    )


def _share(guessed: Tensor, labels: Tensor, top: int) -> float:
    """Returns the share of labels that are among the first `top` guesses."""
    guessed = guessed[labels != IGNORED]
    return float(((guessed != NOT_GUESSED) & (guessed < top)).float().mean())


def trivial_accuracy(positions: Positions) -> float:
    """Returns how often head 0 would be right if it always guessed the most frequent token, or the
    token before, whichever is right more often."""
    labels = positions.continuations(1)[:, 0]
    is_labelled = labels != IGNORED
    labels, before = labels[is_labelled], positions.drawn_ids[is_labelled]
    most_frequent = float((labels == labels.mode().values).float().mean())
    return max(most_frequent, float((labels == before).float().mean()))


def require_preferences(answers: Sequence[TrainingAnswer], vocab_size: int) -> None:
    """Raises ValueError for a model that hardly prefers any token to another.

    With random weights the likeliest of n tokens has a probability not far above 1 / n, so its -log
    is near log n. That of a trained model is much smaller; half of log n is between the two.
    """
    found = -mean(logprob for answer in answers for _, logprob in answer.likeliest)
    most = math.log(vocab_size)
    if found > most / 2:
        raise ValueError(
            f"The likeliest token has a log probability of -{found:.1f} on average, and of "
            f"-{most:.1f} where all are equally likely: this model prefers nothing, as random "
            "weights do, and heads for it would be meaningless; train the model first."
        )


def require_skill(judgement: Judgement) -> None:
    """Raises ValueError for heads that are hardly better than guesses without heads."""
    found, needed = judgement.top[0][0], judgement.trivial + LEAST_MARGIN
    if found < needed:
        raise ValueError(
            f"Head 0 is right at {found:.1%} of held-out positions, and a guess that is always the "
            f"same token or the last one at {judgement.trivial:.1%}; {LEAST_MARGIN:.0%} more than "
            "that is the least that is written; train longer, or on more answers."
        )


def ranks(guesses: Tensor, continuations: Tensor) -> Tensor:
    """Returns the ranks of `continuations` [positions, heads] in `guesses` [positions, heads,
    ranks]; NOT_GUESSED for a token that is not among the guesses."""
    is_right = guesses == continuations.unsqueeze(-1)
    return torch.where(is_right.any(-1), is_right.int().argmax(-1), NOT_GUESSED)


def most_frequent_paths(
    position_ranks: Iterable[Sequence[int]], count: int = MAX_PATHS
) -> list[TreePath]:
    """Returns the paths that would have been right most often, each after its own beginnings.

    The beginning of a path is right at least as often as the path, so the paths form a tree. Of
    paths that are equally frequent, shorter ones come first.
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
    """Returns the paths along the likeliest guesses of the first `depth` heads."""
    return [(0,) * (length + 1) for length in range(depth)]


def tokens_per_step(
    paths: Collection[TreePath], answers: Iterable[Sequence[Sequence[int]]]
) -> float:
    """Returns the mean tokens of a step that decodes these answers with the tree of `paths`.

    An answer is given by the ranks at its positions. A step emits the certain token and those of
    the deepest right path; the next step begins after them. Real decoding does exactly this if a
    token has the same bits whether it was drafted or not.
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
