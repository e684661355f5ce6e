"""The sampler by torch: what `engine.sampler` says, on any device."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference_api.engine.random_numbers import uniforms
from inference_api.request import TokenLogprobs
from inference_api.runner import Draw, Drawn

Change = tuple[int, int, float]  # batch index, token id, amount
Numbers = NDArray[np.float64]  # in (0, 1], one per draw
Candidates = tuple[Tensor, Tensor | None]  # logits [n, candidates]; ids, None: candidate i is i
FindCandidates = Callable[[Tensor, Sequence[Draw]], Candidates]
MAX_PARTIAL_SORT = 1024  # larger top-k values sort the whole vocabulary


class DrawWays(NamedTuple):
    """How tokens are drawn, columns [n, 1] of float64: see `SamplingParams`."""

    temperature: Tensor  # 0: the likeliest
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    number: Tensor  # in (0, 1], which decides


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
    numbers = uniforms([draw.sampling.seed for draw in draws], positions)
    tokens = logits.argmax(dim=-1)
    for candidates, rows in _plan(draws).items():
        index = torch.tensor(rows, device=logits.device)
        group = [draws[row] for row in rows]
        found, ids = candidates(logits[index], group)
        ways = _ways(group, numbers[rows], found)
        weights = kept_weights(found, ways, is_sorted=ids is not None)
        chosen = choice(weights, ways.number)
        tokens[index] = (chosen if ids is None else ids.gather(-1, chosen)).squeeze(-1)
    drawn: list[int] = tokens.tolist()
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
    biases: list[Change] = []
    repetitions: list[Change] = []
    counts: list[Change] = []
    for i, draw in enumerate(draws):
        params = draw.sampling
        if draw.known_id is not None:
            continue
        biases += [(i, token, bias) for token, bias in params.logit_bias]
        if params.repetition_penalty != 1.0:
            seen = {*draw.prompt_ids, *draw.generated, *draw.branch}
            repetitions += [(i, token, params.repetition_penalty) for token in seen]
        if params.presence_penalty or params.frequency_penalty:
            counts += [
                (i, token, -params.presence_penalty - count * params.frequency_penalty)
                for token, count in Counter(chain(draw.generated, draw.branch)).items()
            ]
    _add(logits, biases)
    _scale_down(logits, repetitions)
    _add(logits, counts)


def _forbid(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Minus infinity, in place, for what may not be drawn."""
    constrained = [i for i, draw in enumerate(draws) if draw.allowed is not None]
    if not constrained:
        return
    bits = np.stack([np.frombuffer(draws[i].allowed or b"", np.uint8) for i in constrained])
    allowed = np.unpackbits(bits, axis=-1, count=logits.shape[-1], bitorder="little")
    is_allowed = torch.from_numpy(allowed).to(logits.device, torch.bool)
    logits[constrained] = logits[constrained].masked_fill(~is_allowed, -torch.inf)


def _add(logits: Tensor, changes: Sequence[Change]) -> None:
    if changes:
        index, amounts = _indexed(logits, changes)
        logits.index_put_(index, amounts, accumulate=True)


def _scale_down(logits: Tensor, changes: Sequence[Change]) -> None:
    if changes:
        index, factors = _indexed(logits, changes)
        old = logits[index]
        logits[index] = torch.where(old > 0, old / factors, old * factors)


def _indexed(logits: Tensor, changes: Sequence[Change]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    rows, tokens, amounts = zip(*changes, strict=True)
    index = torch.tensor([rows, tokens], device=logits.device)
    return (index[0], index[1]), torch.tensor(amounts, dtype=logits.dtype, device=logits.device)


def _plan(draws: Sequence[Draw]) -> dict[FindCandidates, list[int]]:
    """Returns the draws by how much of the vocabulary they must order first. Greedy: none."""
    plan: dict[FindCandidates, list[int]] = {}
    for i, draw in enumerate(draws):
        params = draw.sampling
        if params.is_greedy or draw.known_id is not None:
            continue
        if 0 < params.top_k <= MAX_PARTIAL_SORT:
            find = _likeliest
        elif params.top_k or params.top_p < 1.0:
            find = _all_sorted
        else:
            find = _all
        plan.setdefault(find, []).append(i)
    return plan


def _all(logits: Tensor, draws: Sequence[Draw]) -> Candidates:
    return logits, None


def _all_sorted(logits: Tensor, draws: Sequence[Draw]) -> Candidates:
    return logits.sort(dim=-1, descending=True, stable=True)


def _likeliest(logits: Tensor, draws: Sequence[Draw]) -> Candidates:
    """At least the `top_k` likeliest tokens of each row, in order.

    `topk` is at liberty among equal logits, so all that equal a row's last one are brought in:
    the order by id then decides, whatever the neighbours' `top_k`.
    """
    top_k = _column([min(draw.sampling.top_k, logits.shape[-1]) for draw in draws], logits)
    count = int(top_k.max())
    values, ids = logits.topk(count)
    last = values.gather(-1, top_k.long() - 1)
    # What may not be drawn is minus infinity, and not worth ordering.
    is_candidate = (logits >= last) & (logits > -torch.inf)
    num_at_least_last = int(is_candidate.sum(dim=-1).max())
    if num_at_least_last > count:
        ids = logits.topk(num_at_least_last).indices
    ids = ids.sort(dim=-1).values
    values, order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)


def kept_weights(
    logits: Tensor, ways: DrawWays, *, is_sorted: bool, total: Tensor | None = None
) -> Tensor:
    """Weights [n, candidates] relative to the likeliest token, 0 where a token is not drawn. Top-k
    and top-p cut off a tail of what `is_sorted`; `total` [n, 1] has the weights of all tokens, None
    if they are the candidates.

    Everything comes from running sums over such weights: they do not change when a neighbour brings
    more candidates, as a normalising sum might.
    """
    likeliest = logits.amax(dim=-1, keepdim=True).double()
    weights = ((logits.double() - likeliest) / ways.temperature).exp()
    if is_sorted:
        ranks = torch.arange(weights.shape[-1], device=logits.device)
        weights = weights * ((ranks < ways.top_k) | (ways.top_k == 0))
        up_to = weights.cumsum(dim=-1)
        whole = up_to[:, -1:]
        if total is not None:
            whole = torch.where(ways.top_k > 0, whole, total)
        weights = weights * (up_to - weights < ways.top_p * whole)
    return weights * (weights >= ways.min_p)


def choice(weights: Tensor, number: Tensor) -> Tensor:
    """The index of one candidate per row by inverse CDF, [n, 1]."""
    up_to = weights.cumsum(dim=-1)
    targets = number * up_to[:, -1:]  # above 0, at most the last sum
    # Beyond the last one only where logits are no numbers: a wrong token, but not the server's end.
    return torch.searchsorted(up_to, targets).clamp_(max=up_to.shape[-1] - 1)


def _ways(draws: Sequence[Draw], numbers: Numbers, like: Tensor) -> DrawWays:
    params = [draw.sampling for draw in draws]
    values = [(each.temperature, each.top_k, each.top_p, each.min_p) for each in params]
    return DrawWays(*(_column(each, like) for each in (*np.array(values).T, numbers)))


def _column(values: Sequence[float] | Numbers, like: Tensor) -> Tensor:
    """One value per row, [n, 1] float64."""
    return torch.as_tensor(values, dtype=torch.float64, device=like.device).unsqueeze(-1)
