"""The sampler by torch: what `engine.sampler` says, on any device."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

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
from inference_api.request import TokenLogprobs
from inference_api.runner import Draw, Drawn


def sample(logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[Drawn]:
    """Returns what follows `positions`; `logits` [len(draws), vocab] float32 is overwritten."""
    scored = [i for i, draw in enumerate(draws) if draw.sampling.num_logprobs is not None]
    likelihoods = logits[scored].log_softmax(dim=-1) if scored else None
    apply_penalties(logits, draws)
    _forbid(logits, draws)
    token_ids = [
        token if draw.known_id is None else draw.known_id
        for token, draw in zip(_drawn(logits, draws, positions), draws, strict=True)
    ]
    logprobs: list[TokenLogprobs | None] = [None] * len(draws)
    if likelihoods is not None:
        found = _logprobs(
            likelihoods,
            [token_ids[i] for i in scored],
            [draws[i].sampling.num_logprobs or 0 for i in scored],
        )
        for i, each in zip(scored, found, strict=True):
            logprobs[i] = each
    return list(map(Drawn, token_ids, logprobs))


def _drawn(logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[int]:
    drawn: list[int] = logits.argmax(dim=-1).tolist()
    ways = {
        i: way_of(draw.sampling)
        for i, draw in enumerate(draws)
        if not draw.sampling.is_greedy and draw.known_id is None
    }
    for way in (among_all, among_first, among_sorted):
        rows = [i for i, own in ways.items() if own is way]
        if not rows:
            continue
        numbers = numbers_of([draws[i] for i in rows], [positions[i] for i in rows])
        columns = torch.from_numpy(numbers).to(logits.device).unsqueeze(-1)
        found = way(logits[rows], DrawWays(*columns)).squeeze(-1)
        for i, token_id in zip(rows, found.tolist(), strict=True):
            drawn[i] = token_id
            if token_id < 0:
                ways[i] = among_sorted
    return drawn


def _logprobs(
    likelihoods: Tensor, token_ids: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Log probabilities of a token of each row of `likelihoods` [n, vocab] and of `counts` best."""
    index = torch.tensor(token_ids, device=likelihoods.device).unsqueeze(-1)
    own = likelihoods.gather(-1, index)
    ranks = (likelihoods > own).sum(dim=-1) + 1
    values, ids = likelihoods.topk(min(max(counts), likelihoods.shape[-1]))
    return [
        TokenLogprobs(logprob, rank, tuple(zip(row_ids[:count], row_values[:count], strict=True)))
        for logprob, rank, row_ids, row_values, count in zip(
            own.squeeze(-1).tolist(),
            ranks.tolist(),
            ids.tolist(),
            values.tolist(),
            counts,
            strict=True,
        )
    ]


def apply_penalties(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Bias and penalise `logits` in place, for the draws that ask for it."""
    changes: list[tuple[int, int, float, float, float]] = []  # draw, token, amounts
    for i, draw in enumerate(draws):
        params = draw.sampling
        if draw.known_id is not None or not params.changes_logits:
            continue
        biases, said = dict(params.logit_bias), Counter(chain(draw.generated, draw.branch))
        is_penalised = params.presence_penalty or params.frequency_penalty
        penalties = {
            token: params.presence_penalty + count * params.frequency_penalty
            for token, count in (said.items() if is_penalised else ())
        }
        factor = params.repetition_penalty
        factors = {} if factor == 1.0 else dict.fromkeys((*draw.prompt_ids, *said), factor)
        changes += [
            (i, each, biases.get(each, 0.0), factors.get(each, 1.0), penalties.get(each, 0.0))
            for each in {*biases, *factors, *penalties}
        ]
    if not changes:
        return
    rows, tokens, *amounts = zip(*changes, strict=True)
    index = torch.tensor([rows, tokens], device=logits.device).unbind()
    more, by, less = torch.tensor(amounts, dtype=logits.dtype, device=logits.device)
    biased = logits[index] + more
    logits[index] = torch.where(biased > 0, biased / by, biased * by) - less


def _forbid(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Minus infinity, in place, for what may not be drawn."""
    constrained = [i for i, draw in enumerate(draws) if draw.allowed is not None]
    if not constrained:
        return
    bits = np.stack([np.frombuffer(draws[i].allowed or b"", np.uint8) for i in constrained])
    allowed = np.unpackbits(bits, axis=-1, count=logits.shape[-1], bitorder="little")
    is_allowed = torch.from_numpy(allowed).to(logits.device, torch.bool)
    logits[constrained] = logits[constrained].masked_fill(~is_allowed, -torch.inf)
