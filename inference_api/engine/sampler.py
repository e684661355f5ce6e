"""Draws tokens from logits. Pure functions; each token depends only on its own draw.

Order of operations: logit bias, repetition penalty, presence and frequency penalties,
temperature, top-k, top-p, min-p, one draw. Equal logits are ordered by token id, lowest first.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_api.engine.random_numbers import MASK_64
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import HowToDraw, Kernels
from inference_api.request import SamplingParams, TokenLogprobs
from inference_api.runner import Draw, Drawn


def sample(
    logits: Floats, draws: Sequence[Draw], positions: Sequence[int], kernels: Kernels
) -> list[Drawn]:
    """Returns the tokens after `positions`. Overwrites `logits` [len(draws), vocab]."""
    likelihoods = {
        i: _log_softmax(logits[i])
        for i, draw in enumerate(draws)
        if draw.sampling.num_logprobs is not None
    }
    apply_penalties(logits, draws)
    _forbid(logits, draws)
    ways = [_how_to_draw(draw.sampling, at) for draw, at in zip(draws, positions, strict=True)]
    token_ids = [
        token if draw.known_id is None else draw.known_id
        for token, draw in zip(kernels.draw(logits, ways), draws, strict=True)
    ]
    logprobs: list[TokenLogprobs | None] = [None] * len(draws)
    for i, of_row in likelihoods.items():
        logprobs[i] = _logprobs(of_row, token_ids[i], draws[i].sampling.num_logprobs or 0)
    return list(map(Drawn, token_ids, logprobs))


def _how_to_draw(params: SamplingParams, position: int) -> HowToDraw:
    temperature = 0.0 if params.is_greedy else params.temperature
    seed = params.seed & MASK_64
    return temperature, params.top_k, params.top_p, params.min_p, seed, position


def _log_softmax(logits: Floats) -> Floats:
    """Takes one row [vocab], because several at once might be summed in another order."""
    shifted: Floats = logits - logits.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def _logprobs(likelihoods: Floats, token_id: int, count: int) -> TokenLogprobs:
    """Returns the log probabilities of a token and of the `count` likeliest ones."""
    logprob = likelihoods[token_id]
    rank = 1 + int(np.count_nonzero(likelihoods > logprob))
    best: NDArray[np.intp] = np.empty(0, np.intp)
    if count:
        count = min(count, len(likelihoods))
        least = np.partition(likelihoods, -count)[-count]
        best = np.flatnonzero(likelihoods >= least)
        best = best[np.argsort(-likelihoods[best], kind="stable")][:count]
    top = zip(best.tolist(), likelihoods[best].tolist(), strict=True)
    return TokenLogprobs(float(logprob), rank, tuple(top))


class Changes(NamedTuple):
    """Changes to logits, each of one row's token by three `amounts`: the first is added, the second
    divides positive logits and multiplies others, the third is subtracted."""

    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    amounts: Floats  # [3, changes]


def changes_of(draws: Sequence[Draw]) -> Changes | None:
    """Returns biases and penalties; None if no draw has any.

    The repetition penalty (Keskar et al. 2019, arXiv 1909.05858) counts prompt and answer; the
    presence and frequency penalties (OpenAI's definition) count the answer only. Of a draft, only
    the draw's own branch counts.
    """
    changes: list[Changes] = []
    for row, draw in enumerate(draws):
        params = draw.sampling
        if draw.known_id is not None or not params.changes_logits:
            continue
        biases, counts = dict(params.logit_bias), Counter(chain(draw.generated, draw.branch))
        presence, frequency = params.presence_penalty, params.frequency_penalty
        factor, prompt_ids = params.repetition_penalty, draw.prompt_ids
        listed = [*{*biases, *counts}]
        prompt_only = [] if factor == 1.0 else [*prompt_ids.difference(listed)]  # may be many
        amounts = np.full((3, len(listed) + len(prompt_only)), [[0.0], [factor], [0.0]], np.float32)
        amounts[:, : len(listed)] = [
            [biases.get(each, 0.0) for each in listed],
            [factor if each in counts or each in prompt_ids else 1.0 for each in listed],
            [(each in counts) * presence + counts[each] * frequency for each in listed],
        ]
        tokens = np.array(listed + prompt_only, np.int64)
        changes.append(Changes(np.full_like(tokens, row), tokens, amounts))
    if not changes:
        return None
    return Changes(*(np.concatenate(each, -1) for each in zip(*changes, strict=True)))


def apply_penalties(logits: Floats, draws: Sequence[Draw]) -> None:
    """Apply the draws' biases and penalties to `logits`, in place."""
    if (changes := changes_of(draws)) is not None:
        rows, tokens, (added, factors, removed) = changes
        biased = logits[rows, tokens] + added
        logits[rows, tokens] = np.where(biased > 0, biased / factors, biased * factors) - removed


def _forbid(logits: Floats, draws: Sequence[Draw]) -> None:
    """Set the logits of tokens that may not be drawn to minus infinity, in place."""
    for i, draw in enumerate(draws):
        if draw.allowed is not None:
            bits = np.frombuffer(draw.allowed, np.uint8)
            is_allowed = np.unpackbits(bits, count=logits.shape[1], bitorder="little")
            logits[i, is_allowed == 0] = -np.inf
