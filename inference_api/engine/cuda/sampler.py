"""The sampler by torch, on any device. It follows the definitions of `engine.sampler`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference_api.engine.cuda.draws import (
    DrawWays,
    among_all,
    among_first,
    among_sorted,
    numbers_of,
    way_of,
)
from inference_api.engine.sampler import changes_of
from inference_api.request import TokenLogprobs
from inference_api.runner import Draw, Drawn


def sample(logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[Drawn]:
    """Returns the tokens after `positions`. Overwrites `logits` [len(draws), vocab] float32."""
    scored = [i for i, draw in enumerate(draws) if draw.sampling.num_logprobs is not None]
    likelihoods = logits[scored].log_softmax(dim=-1) if scored else None
    apply_penalties(logits, draws)
    _forbid(logits, draws)
    token_ids = [
        token if draw.known_id is None else draw.known_id
        for token, draw in zip(_drawn(logits, draws, positions), draws, strict=True)
    ]
    if likelihoods is None:
        return [*map(Drawn, token_ids)]
    counts = [draws[i].sampling.num_logprobs or 0 for i in scored]
    scored_logprobs = _logprobs(likelihoods, [token_ids[i] for i in scored], counts)
    logprobs = dict(zip(scored, scored_logprobs, strict=True))
    return [Drawn(token_id, logprobs.get(i)) for i, token_id in enumerate(token_ids)]


def _drawn(logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[int]:
    drawn: list[int] = logits.argmax(dim=-1).tolist()
    ways = {
        i: way_of(draw.sampling)
        for i, draw in enumerate(draws)
        if not draw.sampling.is_greedy and draw.known_id is None
    }
    for way in (among_all, among_first, among_sorted):
        rows = [i for i, row_way in ways.items() if row_way is way]
        if not rows:
            continue
        numbers = numbers_of([draws[i] for i in rows], [positions[i] for i in rows])
        columns = torch.from_numpy(numbers).to(logits.device).unsqueeze(-1)
        tokens = way(logits[rows], DrawWays(*columns)).squeeze(-1)
        for i, token_id in zip(rows, tokens.tolist(), strict=True):
            drawn[i] = token_id
            if token_id < 0:
                ways[i] = among_sorted
    return drawn


def _logprobs(
    likelihoods: Tensor, token_ids: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Returns the log probabilities of one token for each row of `likelihoods` [n, vocab], and of
    the row's `counts` likeliest tokens."""
    index = torch.tensor(token_ids, device=likelihoods.device).unsqueeze(-1)
    logprobs = likelihoods.gather(-1, index)
    ranks = (likelihoods > logprobs).sum(dim=-1) + 1
    values, ids = likelihoods.topk(min(max(counts), likelihoods.shape[-1]))
    return [
        TokenLogprobs(logprob, rank, tuple(zip(row_ids[:count], row_values[:count], strict=True)))
        for logprob, rank, row_ids, row_values, count in zip(
            logprobs.squeeze(-1).tolist(),
            ranks.tolist(),
            ids.tolist(),
            values.tolist(),
            counts,
            strict=True,
        )
    ]


def apply_penalties(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Apply the draws' biases and penalties to `logits`, in place."""
    if (changes := changes_of(draws)) is not None:
        rows, tokens, amounts = (torch.from_numpy(each).to(logits.device) for each in changes)
        added, factors, removed = amounts
        biased = logits[rows, tokens] + added
        logits[rows, tokens] = torch.where(biased > 0, biased / factors, biased * factors) - removed


def _forbid(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Set the logits of tokens that may not be drawn to minus infinity, in place."""
    constrained = [i for i, draw in enumerate(draws) if draw.allowed is not None]
    if not constrained:
        return
    bits = np.stack([np.frombuffer(draws[i].allowed or b"", np.uint8) for i in constrained])
    allowed = np.unpackbits(bits, axis=-1, count=logits.shape[-1], bitorder="little")
    is_allowed = torch.from_numpy(allowed).to(logits.device, torch.bool)
    logits[constrained] = logits[constrained].masked_fill(~is_allowed, -torch.inf)
