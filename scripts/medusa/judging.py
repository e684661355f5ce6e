"""Judges heads: how often they are right, and how many tokens a step makes with them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from inference_api.loading.heads import TreePath

from . import tree
from .answers import IGNORED, Positions, TrainingAnswer
from .heads import Heads

TOP = (1, 2, 4, 8)
TREE_NODES = (4, 8, 16, 32, 64)  # with the root
LEAST_MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Judgement:
    """How well heads guess held-out answers. `top`: shares by head, then by TOP. `trivial`: the
    share of head 0's labels that a guess without heads gets right."""

    top: list[list[float]]
    trivial: float
    tokens_by_nodes: dict[int, float]
    tokens_by_chain: dict[int, float]
    answers: int
    positions: int


def answer_ranks(heads: Heads, token_ids: Tensor, positions: Positions) -> list[Tensor]:
    """Returns the ranks of the tokens that came, of each answer [positions, heads]."""
    guesses = heads.guesses(positions.hidden, min(tree.MAX_RANKS, len(token_ids)))
    found = tree.ranks(token_ids[guesses], positions.continuations(heads.num_heads))
    return list(found.split(positions.lengths.tolist()))


def tree_of(calibration: Sequence[Tensor]) -> list[TreePath]:
    return tree.most_frequent_paths(torch.cat(list(calibration)).tolist())


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
            nodes: tree.tokens_per_step(paths[: nodes - 1], answers)
            for nodes in TREE_NODES
            if nodes - 1 <= len(paths)
        },
        tokens_by_chain={
            depth: tree.tokens_per_step(tree.chain(depth), answers)
            for depth in range(1, num_heads + 1)
        },
        answers=len(answers),
        positions=len(positions),
    )


def _share(found: Tensor, labels: Tensor, top: int) -> float:
    """Returns how often a label is among the first `top` guesses."""
    found = found[labels != IGNORED]
    return float(((found != tree.NOT_GUESSED) & (found < top)).float().mean())


def trivial_accuracy(positions: Positions) -> float:
    """How often a guess of head 0 would be right that is always the same token, or always the token
    before it: the better of the two."""
    labels = positions.continuations(1)[:, 0]
    is_labelled = labels != IGNORED
    labels, before = labels[is_labelled], positions.drawn_ids[is_labelled]
    most_frequent = float((labels == labels.mode().values).float().mean())
    return max(most_frequent, float((labels == before).float().mean()))


def require_preferences(answers: Sequence[TrainingAnswer], vocab_size: int) -> None:
    """Raises ValueError for a model that hardly prefers any token to another.

    That is so with random weights: the likeliest of n tokens has not much more than 1 / n, and -log
    of it is near log n. A trained model is far from it; half of log n is between the two.
    """
    found = -mean(logprob for answer in answers for logprob in answer.likeliest_logprobs)
    most = math.log(vocab_size)
    if found > most / 2:
        raise ValueError(
            f"The likeliest token has a log probability of -{found:.1f} on average, and of "
            f"-{most:.1f} where all are equally likely: this model prefers nothing, as random "
            "weights do, and heads for it would be meaningless; train the model first."
        )


def require_skill(judgement: Judgement) -> None:
    """Raises ValueError for heads that are no better than a guess without them."""
    found, needed = judgement.top[0][0], judgement.trivial + LEAST_MARGIN
    if found < needed:
        raise ValueError(
            f"Head 0 is right at {found:.1%} of held-out positions, and a guess that is always the "
            f"same token or the last one at {judgement.trivial:.1%}; {LEAST_MARGIN:.0%} more than "
            "that is the least that is written; train longer, or on more answers."
        )
