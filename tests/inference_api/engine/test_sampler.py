"""Every filter against a slow and obvious reference, and draws against exact probabilities."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from inference_api.engine import sampler
from inference_api.engine.cuda import sampler as torch_sampler
from inference_api.engine.cuda.draws import DRAWS, MAX_PARTIAL_SORT, lines_of, plan_of
from inference_api.engine.cuda.ops import NUM_LINES, STEP_LINES
from inference_api.engine.random_numbers import uniforms
from inference_api.kernels.library import Kernels, supported_variants
from inference_api.request import SamplingParams
from inference_api.runner import Draw, Drawn

VOCAB = 24
NUM_DRAWS = 4000
# Quarters repeat, so that ties are common; they and their sums are exact in float32.
a_row_of_logits = st.lists(
    st.integers(-20, 20).map(lambda n: n / 4), min_size=VOCAB, max_size=VOCAB
)
any_sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 1e-30, 0.01, 0.5, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, VOCAB, 1000, MAX_PARTIAL_SORT + 1]),
    top_p=st.sampled_from([0.0, 1e-300, 0.01, 0.3, 0.77, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    seed=st.integers(-(2**63), 2**64 - 1),
)


POSITION = 9
ApplyPenalties = Callable[[torch.Tensor, Sequence[Draw]], None]
PENALTIES: list[ApplyPenalties] = [  # both in place
    torch_sampler.apply_penalties,
    lambda logits, draws: sampler.apply_penalties(logits.numpy(), draws),
]


ONE_THREAD = Kernels(1)


def row(
    sampling: SamplingParams, prompt: Sequence[int] = (1, 2), generated: Sequence[int] = ()
) -> Draw:
    return Draw(sampling, prompt, generated, prompt_ids=frozenset(prompt))


@pytest.fixture(scope="module", params=[None, *supported_variants()])
def kernels(request: pytest.FixtureRequest) -> Kernels | None:
    return None if request.param is None else Kernels(2, request.param)


def sample(
    logits: torch.Tensor,
    draws: Sequence[Draw],
    kernels: Kernels | None,
    positions: Sequence[int] | None = None,
) -> list[Drawn]:
    places = [POSITION] * len(draws) if positions is None else positions
    if kernels is None:
        return torch_sampler.sample(logits, draws, places)
    return sampler.sample(logits.numpy(), draws, places, kernels)


def tokens(
    logits: torch.Tensor,
    draws: Sequence[Draw],
    kernels: Kernels | None,
    positions: Sequence[int] | None = None,
) -> list[int]:
    return [drawn.token_id for drawn in sample(logits, draws, kernels, positions)]


def reference_probabilities(logits: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """Temperature, top-k, top-p, min-p, each on the renormalised rest, one token at a time."""
    by_rank = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.is_greedy:
        return {by_rank[0]: 1.0}
    best = logits[by_rank[0]]
    weights = {token: math.exp((logits[token] - best) / params.temperature) for token in by_rank}
    kept = by_rank[: params.top_k or None]
    total = math.fsum(weights[token] for token in kept)
    nucleus: list[int] = []
    for token in kept:
        if math.fsum(weights[t] for t in nucleus) >= params.top_p * total:
            break
        nucleus.append(token)
    kept = [token for token in nucleus if weights[token] >= params.min_p]
    total = math.fsum(weights[token] for token in kept)
    return {token: weights[token] / total for token in kept}


@given(logits=a_row_of_logits, params=any_sampling, position=st.integers(0, 2000))
def test_draw_is_the_inverse_of_the_reference_distribution(
    kernels: Kernels | None, logits: list[float], params: SamplingParams, position: int
) -> None:
    (token,) = tokens(torch.tensor([logits]), [row(params)], kernels, [position])
    probabilities = reference_probabilities(logits, params)
    assert token in probabilities
    is_sorted = params.top_k > 0 or params.top_p < 1.0
    order = list(probabilities) if is_sorted else sorted(probabilities)
    before = math.fsum(probabilities[t] for t in order[: order.index(token)])
    number = uniforms([params.seed], [position])[0]
    if not params.is_greedy:
        assert before - 1e-6 <= number <= before + probabilities[token] + 1e-6


@given(rows=st.lists(st.tuples(a_row_of_logits, any_sampling), min_size=2, max_size=9))
def test_tokens_do_not_depend_on_the_neighbours(
    kernels: Kernels | None,
    rows: list[tuple[list[float], SamplingParams]],
) -> None:
    draws = [row(params) for _, params in rows]
    positions = range(len(rows))
    together = tokens(torch.tensor([logits for logits, _ in rows]), draws, kernels, positions)
    alone = [
        tokens(torch.tensor([logits]), [each], kernels, [position])[0]
        for (logits, _), each, position in zip(rows, draws, positions, strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=6),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=1.2, top_k=12, top_p=0.9, min_p=0.05),
    ],
)
def test_frequencies_follow_the_exact_probabilities(
    kernels: Kernels | None, params: SamplingParams
) -> None:
    logits = torch.linspace(-2.0, 1.5, VOCAB)[torch.randperm(VOCAB, generator=_seeded())]
    probabilities = reference_probabilities(logits.tolist(), params)
    drawn = Counter(tokens(logits.repeat(NUM_DRAWS, 1), seeded_draws(params), kernels))
    assert set(drawn) <= set(probabilities)
    expected = np.array([probability * NUM_DRAWS for probability in probabilities.values()])
    result = chisquare(
        [drawn[token] for token in probabilities], expected * NUM_DRAWS / expected.sum()
    )
    assert result.pvalue > 0.001


@cache
def seeded_draws(params: SamplingParams) -> list[Draw]:
    return [row(replace(params, seed=seed)) for seed in range(NUM_DRAWS)]


class LargeStep(NamedTuple):
    """With ties, and with tokens that may not be drawn; and what torch draws of it."""

    logits: torch.Tensor
    inputs: list[Draw]
    positions: range
    by_torch: list[int]


@cache
def large_step(vocab: int, spread: float) -> LargeStep:
    rng = np.random.default_rng(vocab)
    logits = torch.from_numpy(rng.normal(0, spread, (32, vocab)).astype(np.float32))
    logits[::2] = logits[::2].mul(4).round().div(4)
    logits[::3, 1::2] = -torch.inf
    inputs = [
        row(
            SamplingParams(
                temperature=float(rng.choice([0.01, 0.7, 1.0, 100.0])),
                top_k=int(rng.choice([0, 3, 40, 1000, 2000])),
                top_p=float(rng.choice([0.01, 0.5, 0.9, 0.9999, 1.0])),
                min_p=float(rng.choice([0.0, 0.01, 0.3])),
                seed=seed,
            )
        )
        for seed in [-1, 2**63, 2**64 + 1, *range(3, len(logits))]
    ]
    positions = range(0, 100 * len(logits), 100)
    return LargeStep(logits, inputs, positions, tokens(logits.clone(), inputs, None, positions))


@pytest.mark.parametrize("variant", supported_variants())
@pytest.mark.parametrize("spread", [0.3, 3.0, 100.0])
@pytest.mark.parametrize("vocab", [1, 2048, 40_000])
def test_kernels_draw_from_large_vocabularies_what_torch_does(
    variant: str, vocab: int, spread: float
) -> None:
    logits, inputs, positions, by_torch = large_step(vocab, spread)
    drawn = tokens(logits.clone(), inputs, Kernels(2, variant), positions)
    assert drawn == by_torch


@pytest.mark.parametrize("numbers", [[math.nan] * 3, [-math.inf] * 3, [1.0, math.inf, math.nan]])
def test_numbers_that_are_none_still_give_a_token(
    kernels: Kernels | None, numbers: list[float]
) -> None:
    inputs = [row(SamplingParams()), row(SamplingParams(top_k=2, top_p=0.5, min_p=0.1))]
    drawn = tokens(torch.tensor([numbers] * 2), inputs, kernels)
    assert all(0 <= token < 3 for token in drawn)


@given(
    logits=a_row_of_logits,
    params=any_sampling,
    ends=st.sampled_from([{"top_k": 1}, {"top_p": 0.0}])
    | st.floats(0, 1e-30, exclude_max=True).map(lambda t: {"temperature": t}),
)
def test_what_leaves_one_token_is_greedy_and_takes_the_lowest_id_among_equals(
    kernels: Kernels | None, logits: list[float], params: SamplingParams, ends: dict[str, Any]
) -> None:
    greedy = row(replace(params, **ends))
    assert tokens(torch.tensor([logits]), [greedy], kernels) == [logits.index(max(logits))]


def test_top_k_takes_the_lowest_ids_among_equals(kernels: Kernels | None) -> None:
    draws = {
        tokens(torch.zeros(1, 8), [row(SamplingParams(top_k=3, seed=s))], kernels)[0]
        for s in range(99)
    }
    assert draws == {0, 1, 2}


@pytest.mark.parametrize("apply_penalties", PENALTIES)
def test_penalties_and_bias_are_as_computed_by_hand(apply_penalties: ApplyPenalties) -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0, 4.0]])
    params = SamplingParams(
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias=((0, 6.0), (3, -1.0)),
    )
    apply_penalties(logits, [row(params, prompt=[0, 1], generated=[4, 4, 4])])
    # 0: (2 + 6) / 2; 1: -2 * 2; 2: untouched; 3: bias only; 4: 4 / 2 - 0.5 - 3 * 0.25
    assert logits.tolist() == [[4.0, -4.0, 1.0, -1.0, 0.75]]


@pytest.mark.parametrize("apply_penalties", PENALTIES)
def test_presence_and_frequency_ignore_the_prompt(apply_penalties: ApplyPenalties) -> None:
    logits = torch.ones(1, 4)
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=1.0)
    apply_penalties(logits, [row(params, prompt=[0, 1, 2, 3])])
    assert logits.tolist() == [[1.0] * 4]


@pytest.mark.parametrize("apply_penalties", PENALTIES)
def test_penalties_touch_only_the_rows_that_ask(apply_penalties: ApplyPenalties) -> None:
    logits = torch.ones(3, 4)
    penalised = row(SamplingParams(repetition_penalty=2.0), prompt=[2])
    plain = row(SamplingParams(), prompt=[2])
    apply_penalties(logits, [plain, penalised, plain])
    assert logits.tolist() == [[1.0] * 4, [1.0, 1.0, 0.5, 1.0], [1.0] * 4]


def test_greedy_heeds_the_penalties(kernels: Kernels | None) -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=4.0)
    logits = torch.tensor([[3.0, 1.0]])
    assert tokens(logits, [row(params, prompt=[0])], kernels) == [1]


@given(
    rows=st.lists(
        st.tuples(a_row_of_logits, any_sampling, st.none() | st.integers(0, 5)), min_size=1
    )
)
def test_logprobs_are_of_the_models_own_distribution(
    kernels: Kernels | None,
    rows: list[tuple[list[float], SamplingParams, int | None]],
) -> None:
    inputs = [
        row(replace(params, num_logprobs=count, repetition_penalty=3.0))
        for _, params, count in rows
    ]
    drawn = sample(torch.tensor([logits for logits, _, _ in rows]), inputs, kernels)
    for (logits, _, count), each in zip(rows, drawn, strict=True):
        exact = torch.tensor(logits).log_softmax(-1)
        if count is None:
            assert each.logprobs is None
            continue
        assert each.logprobs is not None
        assert each.logprobs.logprob == pytest.approx(float(exact[each.token_id]), abs=1e-5)
        top = [logprob for _, logprob in each.logprobs.top]
        assert top == pytest.approx(exact.topk(count).values.tolist(), abs=1e-5)
        assert [float(exact[token]) for token, _ in each.logprobs.top] == pytest.approx(top)


some_tokens = st.lists(st.integers(0, VOCAB - 1), max_size=6)
any_draw = st.builds(
    Draw,
    st.builds(
        replace,
        any_sampling,
        num_logprobs=st.none() | st.integers(0, VOCAB + 1),
        repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
        presence_penalty=st.sampled_from([0.0, -0.3, 0.7]),
        frequency_penalty=st.sampled_from([0.0, 0.1]),
        logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-9, 9), max_size=3).map(
            lambda biases: tuple(biases.items())
        ),
    ),
    some_tokens,
    some_tokens,
    some_tokens,
    known_id=st.none() | st.integers(0, VOCAB - 1),
    allowed=st.none()
    | st.integers(1, 2**VOCAB - 1).map(lambda n: n.to_bytes(VOCAB // 8, "little")),
    prompt_ids=some_tokens.map(frozenset),
)


@given(rows=st.lists(st.tuples(a_row_of_logits, any_draw), min_size=1, max_size=5))
def test_tokens_and_their_likelihoods_are_those_of_torch(
    rows: list[tuple[list[float], Draw]],
) -> None:
    logits, draws = torch.tensor([numbers for numbers, _ in rows]), [draw for _, draw in rows]
    expected = sample(logits.clone(), draws, None)
    drawn = sample(logits.clone(), draws, ONE_THREAD)
    for one, other, numbers in zip(drawn, expected, logits, strict=True):
        assert one.token_id == other.token_id
        if one.logprobs is None or other.logprobs is None:
            assert one.logprobs is other.logprobs
            continue
        assert one.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-5)
        assert one.logprobs.rank == other.logprobs.rank
        ids, likelihoods = zip(*one.logprobs.top, strict=True) if one.logprobs.top else ((), ())
        assert likelihoods == pytest.approx([each for _, each in other.logprobs.top], abs=1e-5)
        by_rank = sorted(range(VOCAB), key=lambda token: (-numbers[token], token))
        assert list(ids) == by_rank[: len(ids)]


def test_known_token_is_scored_not_drawn(kernels: Kernels | None) -> None:
    params = SamplingParams(num_logprobs=1)
    known = replace(row(params), known_id=2)
    (drawn,) = sample(torch.tensor([[0.0, 9.0, 0.0]]), [known], kernels)
    assert drawn.token_id == 2
    assert drawn.logprobs is not None
    assert drawn.logprobs.logprob < -8
    assert [token for token, _ in drawn.logprobs.top] == [1]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def in_a_step(logits: torch.Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[int]:
    """As recorded steps draw."""
    plan = plan_of(draws, positions)
    assert plan is not None
    inputs = np.zeros((STEP_LINES, len(draws)), np.int32)
    assert plan.numbers is not None
    inputs[NUM_LINES:] = lines_of(plan.numbers)
    outputs = [logits, logits, logits.argmax(-1)]
    outputs += [draw(outputs, torch.from_numpy(inputs))[0] for draw in DRAWS]
    return [int(outputs[each][i]) for i, each in enumerate(plan.outputs)]


@pytest.mark.parametrize("spread", [0.3, 3.0, 100.0])
@pytest.mark.parametrize("vocab", [7, 1024, 5000])
def test_steps_draw_the_same_or_say_that_they_cannot(vocab: int, spread: float) -> None:
    """With ties: they can if the vocabulary is small, or the likeliest candidates suffice."""
    rng = np.random.default_rng(vocab)
    logits = torch.from_numpy(rng.normal(0, spread, (48, vocab)).astype(np.float32))
    logits[::2] = logits[::2].mul(4).round().div(4)
    ways = [
        SamplingParams(
            temperature=float(rng.choice([0.0, 0.01, 0.7, 1.0])),
            top_k=int(rng.choice([0, 3, 40, MAX_PARTIAL_SORT])),
            top_p=float(rng.choice([0.01, 0.5, 0.9, 0.9999, 1.0])),
            min_p=float(rng.choice([0.0, 0.01, 0.3])),
            seed=seed,
        )
        for seed in range(len(logits))
    ]
    draws, positions = [row(params) for params in ways], range(0, 100 * len(logits), 100)
    drawn = in_a_step(logits.clone(), draws, positions)
    expected = tokens(logits.clone(), draws, None, positions)
    assert all(own in (-1, other) for own, other in zip(drawn, expected, strict=True))
    missing = [params for params, token in zip(ways, drawn, strict=True) if token < 0]
    if vocab <= MAX_PARTIAL_SORT:
        assert missing == []
    elif spread == 0.3:  # nearly equal tokens, all of which count
        assert any(params.top_k == 0 for params in missing)


def test_what_changes_logits_or_wants_more_of_them_is_left_to_the_sampler() -> None:
    greedy = SamplingParams(temperature=0.0)
    plan = plan_of([Draw(greedy, (1,), (2,))], [3])
    assert plan is not None
    assert plan.numbers is None
    others = [
        Draw(replace(greedy, **changed), (1,), (2,))
        for changed in (
            {"top_k": MAX_PARTIAL_SORT + 1},
            {"logit_bias": ((3, 1.0),)},
            {"repetition_penalty": 1.1},
            {"presence_penalty": 0.1},
            {"frequency_penalty": 0.1},
            {"num_logprobs": 0},
        )
    ]
    others += [Draw(greedy, (1,), (), known_id=3), Draw(greedy, (1,), (), allowed=b"\x01")]
    assert all(plan_of([each], [3]) is None for each in others)
