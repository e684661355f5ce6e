"""Draws of fixed shape. They read no value on the host, so that steps can record them.

`sampler` makes the draws that change logits first, or return more than a token.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference_api.engine.cuda.inputs import Lines
from inference_api.engine.cuda.ops import LIKELIEST, LOGITS, NUM_LINES, WAYS
from inference_api.engine.random_numbers import uniforms
from inference_api.request import SamplingParams
from inference_api.runner import Draw

MAX_PARTIAL_SORT = 1024  # likeliest tokens that a step sorts

Numbers = NDArray[np.float64]


class DrawWays(NamedTuple):
    """How tokens are drawn, as columns [n, 1] of float64: see `SamplingParams`."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    number: Tensor  # a random number in (0, 1]


Way = Callable[[Tensor, DrawWays], Tensor]  # from logits [n, vocab] to token ids [n, 1]


class Plan(NamedTuple):
    """How a step draws its tokens."""

    outputs: Sequence[int]  # for each draw, the step's output to use: see `FixedStep.output`
    numbers: Numbers | None  # [WAYS, draws]; None: all draws take the likeliest token


def plan_of(draws: Sequence[Draw], positions: Sequence[int]) -> Plan | None:
    """Returns a plan for draws after `positions`; None if `sampler` must make them."""
    params = [draw.sampling for draw in draws]
    ways = [*map(way_of, params)]
    for draw, way in zip(draws, ways, strict=True):
        if draw.allowed is not None or draw.known_id is not None or way is among_sorted:
            return None
        if draw.sampling.changes_logits or draw.sampling.num_logprobs is not None:
            return None
    outputs = [
        LIKELIEST if each.is_greedy else LIKELIEST + 1 + IN_STEPS.index(way)
        for each, way in zip(params, ways, strict=True)
    ]
    return Plan(outputs, numbers_of(draws, positions) if {*outputs} - {LIKELIEST} else None)


def numbers_of(draws: Sequence[Draw], positions: Sequence[int]) -> Numbers:
    """Returns the values of `DrawWays` for draws after `positions`, [WAYS, draws]."""
    params = [draw.sampling for draw in draws]
    ways = [(each.temperature, each.top_k, each.top_p, each.min_p) for each in params]
    numbers = uniforms([each.seed for each in params], positions)
    return np.concatenate((np.array(ways).T, numbers[None]))


def lines_of(numbers: Numbers) -> Lines:
    """Returns numbers [WAYS, n] as lines of a step's inputs, two lines of int32 for each way."""
    halves = np.ascontiguousarray(numbers)[..., None].view(np.int32)
    return halves.swapaxes(1, 2).reshape(2 * WAYS, -1)


def way_of(params: SamplingParams) -> Way:
    if params.top_k == 0 and params.top_p >= 1.0:
        return among_all
    return among_first if params.top_k <= MAX_PARTIAL_SORT else among_sorted


def among_first(logits: Tensor, ways: DrawWays) -> Tensor:
    """Returns -1 where more than the MAX_PARTIAL_SORT likeliest tokens may be candidates."""
    vocab = logits.shape[-1]
    # Equal logits are ordered by token id, as in `among_sorted`.
    ids = logits.topk(min(MAX_PARTIAL_SORT, vocab)).indices.sort(dim=-1).values
    values, order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    if values.shape[-1] == vocab:
        return ids.gather(-1, _choice(_kept_weights(values, ways, is_sorted=True), ways.number))
    shifted = logits.double() - values[:, :1]
    total = (shifted / ways.temperature).exp().sum(dim=-1, keepdim=True)
    weights = _kept_weights(values, ways, is_sorted=True, total=total)
    least = values.masked_fill(weights == 0, torch.inf).amin(dim=-1, keepdim=True)
    return torch.where(values[:, -1:] < least, ids.gather(-1, _choice(weights, ways.number)), -1)


def among_all(logits: Tensor, ways: DrawWays) -> Tensor:
    """Draws without top-k and top-p, so tokens stay in the order of their ids."""
    return _choice(_kept_weights(logits, ways, is_sorted=False), ways.number)


def among_sorted(logits: Tensor, ways: DrawWays) -> Tensor:
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, _choice(_kept_weights(values, ways, is_sorted=True), ways.number))


def _in_step(draw: Way, outputs: Sequence[Tensor], inputs: Tensor) -> Sequence[Tensor]:
    """Returns token ids [n] drawn from a step's logits, as the last lines of its inputs say."""
    halves = inputs[NUM_LINES:].unflatten(0, (WAYS, 2)).mT
    numbers = halves.clone(memory_format=torch.contiguous_format).view(torch.float64)
    return [draw(outputs[LOGITS], DrawWays(*numbers)).squeeze(-1)]


IN_STEPS = (among_first, among_all)
DRAWS = tuple(partial(_in_step, way) for way in IN_STEPS)


def _kept_weights(
    logits: Tensor, ways: DrawWays, *, is_sorted: bool, total: Tensor | None = None
) -> Tensor:
    """Returns weights [n, candidates] relative to the likeliest token; 0 for tokens that cannot be
    drawn. Top-k and top-p apply only if candidates are sorted. `total` [n, 1] is the sum of all
    tokens' weights; None if all tokens are candidates.

    All limits derive from running sums of these weights. Unlike a normalising sum, they do not
    change when a neighbour brings more candidates.
    """
    likeliest = logits.amax(dim=-1, keepdim=True).double()
    weights = ((logits.double() - likeliest) / ways.temperature).exp()
    if is_sorted:
        ranks = torch.arange(weights.shape[-1], device=logits.device)
        weights = weights * ((ranks < ways.top_k) | (ways.top_k == 0))
        up_to = weights.cumsum(dim=-1)
        top_k_weight = up_to[:, -1:]
        if total is not None:
            top_k_weight = torch.where(ways.top_k > 0, top_k_weight, total)
        weights = weights * (up_to - weights < ways.top_p * top_k_weight)
    return weights * (weights >= ways.min_p)


def _choice(weights: Tensor, number: Tensor) -> Tensor:
    """Returns the index of one candidate for each row by inverse CDF, [n, 1]."""
    up_to = weights.cumsum(dim=-1)
    targets = number * up_to[:, -1:]  # above 0, at most the last sum
    # Only NaN logits lead beyond the last index: the token is then wrong, but the server goes on.
    return torch.searchsorted(up_to, targets).clamp_(max=up_to.shape[-1] - 1)
