"""Sampled tokens are of the model's own distribution, whatever is drafted: chi-square of what was
drawn, at every depth of accepted branches, against the likelihoods of plain steps."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from inference_api.core import plan as step_plan
from inference_api.core.rows import Tokens
from inference_api.request import SamplingParams
from inference_api.runner import Drawn, RowStep
from tests.inference_api.engine.tiny_models import CONTEXT, folder_of
from tests.inference_api.speculation.decoding import Answer, Decoding, Model, request_of
from tests.inference_api.speculation.sources import SOURCES, Known

SEEDS_OF_A_PROMPT = 300
MAX_TOKENS = 5
MIN_EXPECTED = 5.0  # of a cell, for chi-square to hold
LEAST_P_VALUE = 1e-4  # of numbers that are the same in every run
NUM_LIKELY = 8
LENIENCY = 0.1

PROMPTS: Sequence[Tokens] = [(250, 1, 9, 12), (5, 6, 7, 8, 77)]
SAMPLINGS: Mapping[str, SamplingParams] = {
    "temperature": SamplingParams(temperature=0.5),
    "top-k and top-p": SamplingParams(temperature=0.8, top_k=8, top_p=0.8),
}

Law = Callable[[Tokens, SamplingParams], NDArray[np.float64]]


@pytest.fixture(scope="module")
def model() -> Model:
    """Of random weights: whatever the context, several tokens are likely."""
    return Model("float32", folder_of("llama"), CONTEXT)


@pytest.fixture(scope="module")
def law(model: Model) -> Law:
    """What the token after these is drawn from, each distribution computed once."""
    log_likelihoods = cache(model.log_likelihoods)
    return cache(lambda tokens, sampling: target(log_likelihoods(tokens), sampling))


@pytest.fixture(scope="module", params=SAMPLINGS)
def plain(request: pytest.FixtureRequest, model: Model) -> list[Answer]:
    """What every seed draws without a source."""
    sampling = replace(SAMPLINGS[request.param], num_logprobs=NUM_LIKELY)
    return Decoding(model).answers(
        request_of(prompt, MAX_TOKENS, replace(sampling, seed=seed))
        for prompt in PROMPTS
        for seed in range(SEEDS_OF_A_PROMPT)
    )


def drafted(model: Model, plain: Sequence[Answer], source: str) -> list[Answer]:
    """The same requests, with a source."""
    drafts = SOURCES[source](model, Known(plain))
    return Decoding(model, drafts).answers(answer.request for answer in plain)


def target(log_likelihoods: NDArray[np.float64], sampling: SamplingParams) -> NDArray[np.float64]:
    """The distribution that a token is drawn from: temperature, then top-k, then top-p."""
    weights = np.exp(log_likelihoods / sampling.temperature)
    order = np.argsort(-weights, kind="stable")
    weights[order[sampling.top_k or len(weights) :]] = 0.0
    weights /= weights.sum()
    mass_before = np.cumsum(weights[order]) - weights[order]
    weights[order[mass_before >= sampling.top_p]] = 0.0
    distribution: NDArray[np.float64] = weights / weights.sum()
    return distribution


class Cells:
    """Tokens by how many in their place were likelier, and how many of each were expected.

    Expectations of several contexts add up; what is drawn then varies at most as much as in one.
    """

    def __init__(self, vocab_size: int) -> None:
        self._drawn = np.zeros(vocab_size)
        self._expected = np.zeros(vocab_size)

    def add(self, tokens: Sequence[int], likelihoods: NDArray[np.float64]) -> None:
        order = np.argsort(-likelihoods, kind="stable")
        ranks = np.argsort(order)
        np.add.at(self._drawn, ranks[[*tokens]], 1)
        self._expected += len(tokens) * likelihoods[order]

    def p_value(self) -> float | None:
        """By chi-square; ranks that few are expected of share the last cell. None of too few."""
        assert self._expected.sum() == pytest.approx(self._drawn.sum())
        if self._drawn[self._expected == 0.0].any():
            return 0.0
        starts = np.flatnonzero(self._expected >= MIN_EXPECTED)
        if len(starts) < 3:
            return None
        drawn, expected = (np.add.reduceat(each, starts) for each in (self._drawn, self._expected))
        return float(chi2.sf(((drawn - expected) ** 2 / expected).sum(), len(starts) - 1))


def p_values(answers: Iterable[Answer], law: Law) -> dict[object, float]:
    """Of the first tokens, by the prompt; of others, by how many guesses they came after."""
    drawn: dict[tuple[object, Tokens, SamplingParams], list[int]] = defaultdict(list)
    for answer in answers:
        prompt, num_before = answer.request.prompt_tokens, 0
        sampling = replace(answer.request.params.sampling, seed=0)
        for event in answer.events:
            for depth, token in enumerate(event.token_ids):
                place = depth if num_before + depth else prompt
                context = prompt + answer.tokens[: num_before + depth]
                drawn[place, context, sampling].append(token)
            num_before += len(event.token_ids)
    cells: dict[object, Cells] = {}
    for (where, context, sampling), tokens in drawn.items():
        likelihoods = law(context, sampling)
        cells.setdefault(where, Cells(len(likelihoods))).add(tokens, likelihoods)
    found = {place: each.p_value() for place, each in cells.items()}
    return {place: p_value for place, p_value in found.items() if p_value is not None}


@pytest.mark.parametrize(
    ("source", "depths"),
    [("oracle", [0, 1, 2, 3]), ("adversary", [0]), ("random trees", [0, 1, 2])],
)
def test_tokens_at_every_depth_are_of_the_models_distribution(
    model: Model,
    plain: Sequence[Answer],
    law: Law,
    source: str,
    depths: Sequence[int],
) -> None:
    found = p_values(drafted(model, plain, source), law)
    assert found.keys() >= {*PROMPTS, *depths}
    assert min(found.values()) > LEAST_P_VALUE, found


def leniently_accepted(step: RowStep, drawn: Sequence[Drawn]) -> tuple[list[int], list[Drawn]]:
    """A wrong rule: takes a likely guess, whatever was drawn."""
    first = step.num_undrawn
    tokens, along = [*range(first + 1)], [drawn[0]]
    for token in range(first + 1, len(step.token_ids)):
        parent = token - 1 if step.parents is None else step.parents[token]
        logprobs, guess = along[-1].logprobs, step.token_ids[token]
        assert logprobs is not None
        if parent == tokens[-1] and dict(logprobs.top).get(guess, -math.inf) > math.log(LENIENCY):
            tokens.append(token)
            along[-1:] = [Drawn(guess, logprobs), drawn[token - first]]
    return tokens, along


def test_wrong_rule_is_seen(
    model: Model,
    plain: Sequence[Answer],
    law: Law,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_plan, "accepted_branch", leniently_accepted)
    found = p_values(drafted(model, plain, "adversary"), law)
    assert min(found.values()) < LEAST_P_VALUE**2, found
