"""Draws that are recorded: of fixed shape, and the host looks at no value. They follow a step.

`sampler` has those that change logits first, or want more than a token.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from inference_api.engine.cuda.inputs import Numbers
from inference_api.engine.cuda.ops import LIKELIEST, LOGITS, NUM_LINES
from inference_api.engine.cuda.sampler import MAX_PARTIAL_SORT, DrawWays, choice, kept_weights
from inference_api.engine.random_numbers import uniforms
from inference_api.runner import Draw

WAYS = len(DrawWays._fields)
WAY_LINES = WAYS * 2  # 32 bits each, behind what describes the tokens of a step


class Plan(NamedTuple):
    """How a step's tokens are drawn."""

    kinds: Sequence[int]  # indices of DRAWS; none: all take the likeliest
    numbers: Numbers  # [WAYS, draws], or none of these
    is_among_all: Sequence[bool]  # for each draw


def plan_of(draws: Sequence[Draw], positions: Sequence[int]) -> Plan | None:
    """Returns how tokens are drawn after `positions`; None if `sampler` has to."""
    ways = []
    for draw in draws:
        params = draw.sampling
        if draw.allowed is not None or draw.known_id is not None or params.changes_logits:
            return None
        if params.num_logprobs is not None or params.top_k > MAX_PARTIAL_SORT:
            return None
        temperature = 0.0 if params.is_greedy else params.temperature
        ways.append((temperature, params.top_k, params.top_p, params.min_p))
    if not any(temperature for temperature, *_ in ways):
        return Plan((), np.empty((0, len(draws))), ())
    seeds = [draw.sampling.seed for draw in draws]
    numbers = np.concatenate((np.array(ways).T, uniforms(seeds, positions)[None]))
    is_among_all = [top_k == 0 and top_p >= 1.0 for _, top_k, top_p, _ in ways]
    found = {
        of_all for (temperature, *_), of_all in zip(ways, is_among_all, strict=True) if temperature
    }
    return Plan(sorted(found), numbers, is_among_all)


def _among_first(outputs: Sequence[Tensor], inputs: Tensor) -> Sequence[Tensor]:
    """Token ids [n]; -1 where more candidates than MAX_PARTIAL_SORT count."""
    logits, ways = outputs[LOGITS], _ways(inputs)
    vocab = logits.shape[-1]
    # In the order of the sampler: equal ones by their ids.
    ids = logits.topk(min(MAX_PARTIAL_SORT, vocab)).indices.sort(dim=-1).values
    values, order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    shifted = logits.double() - values[:, :1]
    total = (shifted / ways.temperature).exp().sum(dim=-1, keepdim=True)
    weights = kept_weights(values, ways, is_sorted=True, total=total)
    drawn = ids.gather(-1, choice(weights, ways.number))
    if values.shape[-1] < vocab:
        least = values.masked_fill(weights == 0, torch.inf).amin(dim=-1, keepdim=True)
        drawn = torch.where(values[:, -1:] < least, drawn, -1)
    return _or_likeliest(drawn, ways, outputs)


def _among_all(outputs: Sequence[Tensor], inputs: Tensor) -> Sequence[Tensor]:
    """Token ids [n]."""
    ways = _ways(inputs)
    weights = kept_weights(outputs[LOGITS], ways, is_sorted=False)
    return _or_likeliest(choice(weights, ways.number), ways, outputs)


DRAWS = (_among_first, _among_all)


def _ways(inputs: Tensor) -> DrawWays:
    """Columns [n, 1]."""
    numbers = inputs[NUM_LINES:].flatten().view(torch.float64)
    return DrawWays(*numbers.view(WAYS, -1, 1))


def _or_likeliest(drawn: Tensor, ways: DrawWays, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    return [torch.where(ways.temperature > 0, drawn, outputs[LIKELIEST][:, None]).squeeze(-1)]
