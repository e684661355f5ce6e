"""Draws tokens from logits. Pure functions; each token depends only on its own draw.

Order of operations: logit bias, repetition penalty, presence and frequency penalties,
temperature, top-k, top-p, min-p, one draw. Equal logits are ordered by token id, lowest first.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

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
    own = likelihoods[token_id]
    rank = 1 + int(np.count_nonzero(likelihoods > own))
    best: NDArray[np.intp] = np.empty(0, np.intp)
    if count:
        count = min(count, len(likelihoods))
        least = np.partition(likelihoods, -count)[-count]
        best = np.flatnonzero(likelihoods >= least)
        best = best[np.argsort(-likelihoods[best], kind="stable")][:count]
    top = zip(best.tolist(), likelihoods[best].tolist(), strict=True)
    return TokenLogprobs(float(own), rank, tuple(top))


def apply_penalties(logits: Floats, draws: Sequence[Draw]) -> None:
    """Add biases and penalties to `logits` in place, for the draws that have any.

    The repetition penalty (Keskar et al. 2019, arXiv 1909.05858) counts prompt and answer; the
    presence and frequency penalties (OpenAI's definition) count the answer only. Of a draft, only
    the draw's own branch counts.
    """
    for i, draw in enumerate(draws):
        params = draw.sampling
        if draw.known_id is not None:
            continue
        if params.logit_bias:
            tokens, biases = zip(*params.logit_bias, strict=True)
            np.add.at(logits[i], list(tokens), np.array(biases, np.float32))
        if params.repetition_penalty != 1.0:
            seen = list({*draw.prompt_ids, *draw.generated, *draw.branch})
            old, penalty = logits[i, seen], np.float32(params.repetition_penalty)
            logits[i, seen] = np.where(old > 0, old / penalty, old * penalty)
        if params.presence_penalty or params.frequency_penalty:
            counts = Counter(chain(draw.generated, draw.branch))
            penalties = [
                params.presence_penalty + count * params.frequency_penalty
                for count in counts.values()
            ]
            logits[i, list(counts)] -= np.array(penalties, np.float32)


def _forbid(logits: Floats, draws: Sequence[Draw]) -> None:
    """Set the logits of tokens that may not be drawn to minus infinity, in place."""
    for i, draw in enumerate(draws):
        if draw.allowed is not None:
            bits = np.frombuffer(draw.allowed, np.uint8)
            is_allowed = np.unpackbits(bits, count=logits.shape[1], bitorder="little")
            logits[i, is_allowed == 0] = -np.inf
