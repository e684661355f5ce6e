"""What every sampler owes, and what the default finds."""

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from common.numerics import FloatArray
from weights.partition import MAX_NEIGHBOURS, neighbours
from weights.samplers import SAMPLERS, SamplerName
from weights.samplers.assessment import assess
from weights.samplers.cost_model import Bounds
from weights.samplers.dirichlet import most_likely_concentration
from weights.samplers.model_choice import guide, most_trusted
from weights.samplers.stages import SlowestStage, fit_slowest_stage
from weights.samplers.trials import trials_from
from weights.search import Observation, Problem, Proposal, ProposalRequest

Metric = Callable[[FloatArray], float]
COSTS = np.array([1.0, 2.0, 4.0])
FREE = Problem((0.0,) * 3, (1.0,) * 3)


def slowest(weights: FloatArray) -> float:
    return 1.0 / float((COSTS * weights + 0.02).max())


def search(
    name: SamplerName, problem: Problem, metric: Metric, trials: int, seed: int = 0
) -> tuple[list[Observation], list[Proposal]]:
    rng, sampler = np.random.default_rng(seed), SAMPLERS[name]
    observations: list[Observation] = []
    proposals: list[Proposal] = []
    for _ in range(trials):
        proposals += sampler(ProposalRequest(problem, observations, [], 1, rng))
        weights = proposals[-1].shares
        observations.append(Observation(weights, metric(np.array(weights))))
    return observations, proposals


@pytest.mark.parametrize("name", get_args(SamplerName))
@pytest.mark.parametrize(
    "problem",
    [
        FREE,
        Problem((0.1, 0.0, 0.0), (0.5, 0.4, 0.35)),
        Problem((0.0,) * 3, (0.5, 0.3, 0.2)),
        Problem((0.0,) * 3, (1.0, 1.0, 0.0)),
        Problem((0.0,) * 3, (0.6,) * 3, "minimize", num_layers=7),
    ],
    ids=["free", "bounds", "one point", "a node without share", "layers"],
)
def test_proposals_keep_to_the_problem(name: SamplerName, problem: Problem) -> None:
    observations, _ = search(name, problem, slowest, 55 if name == "dirichlet_mle" else 8)
    for weights in (np.array(observation.shares) for observation in observations):
        assert float(weights.sum()) == pytest.approx(1.0, abs=1e-9)
        assert (weights >= np.array(problem.min_weightings) - 1e-9).all()
        assert (weights <= np.array(problem.max_weightings) + 1e-9).all()
        if problem.num_layers is not None:
            layers = weights * problem.num_layers
            assert layers == pytest.approx(np.round(layers), abs=1e-9)


@pytest.mark.parametrize("name", get_args(SamplerName))
def test_one_seed_gives_one_proposal(name: SamplerName) -> None:
    observations, _ = search("random", FREE, slowest, 52)
    sampler = SAMPLERS[name]
    first, again, other = (
        sampler(ProposalRequest(FREE, observations, [], 2, np.random.default_rng(seed)))
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert assess(FREE, observations) == assess(FREE, observations)


def test_several_asks_at_once_differ_from_each_other() -> None:
    observations, _ = search("random", FREE, slowest, 10)
    request = ProposalRequest(FREE, observations, [(0.5, 0.3, 0.2)], 4, np.random.default_rng(0))
    proposed = SAMPLERS["adaptive"](request)
    assert len({proposal.shares for proposal in proposed}) == 4


def test_the_slowest_stage_is_recognised_and_balanced_under_noise() -> None:
    noise = np.random.default_rng(3)

    def metric(weights: FloatArray) -> float:
        return slowest(weights) * (1.0 + 0.05 * noise.normal())

    observations, proposals = search("adaptive", FREE, metric, 30)
    found = assess(FREE, observations)
    assert proposals[-1].model == found.model == "slowest_stage"
    assert slowest(np.array(found.best.shares)) > 0.95 * slowest(np.array([4, 2, 1]) / 7)
    assert found.best.low < found.best.metric < found.best.high
    assert found.concentration is not None
    belief = np.array(found.concentration) / sum(found.concentration)
    assert belief == pytest.approx(np.array([4, 2, 1]) / 7, abs=0.05)


def test_the_stages_of_many_nodes_are_not_taken_for_noise() -> None:
    nodes, trials, rng = 16, 100, np.random.default_rng(2)
    costs = np.exp(0.5 * rng.normal(size=nodes))
    spread = rng.choice([0.1, 1.0], size=(trials, 1))
    weights = np.exp(spread * rng.normal(size=(trials, nodes))) / costs
    weights /= weights.sum(axis=1, keepdims=True)
    metrics = np.exp(0.05 * rng.normal(size=trials)) / (costs * weights + 0.005).max(axis=1)
    observations = [
        Observation(tuple(row), metric)
        for row, metric in zip(weights.tolist(), metrics.tolist(), strict=True)
    ]
    problem = Problem((0.0,) * nodes, (1.0,) * nodes)
    fit = fit_slowest_stage(trials_from(observations, problem), np.random.default_rng(0))
    assert fit.noise == pytest.approx(0.05, abs=0.01)


def test_a_node_that_its_cap_keeps_fast_is_not_what_is_explored() -> None:
    rng = np.random.default_rng(0)
    slopes = np.exp(rng.normal(size=(48, 3)) * np.array([0.05, 0.05, 0.5]))  # the last least known
    fit = SlowestStage(slopes, np.full((48, 3), 0.01), np.full(48, 0.05), np.zeros(1))
    bounds = Bounds(np.zeros(3), np.array([1.0, 1.0, 0.1]))
    explored = np.array([fit.explore(bounds, rng) for _ in range(20)])
    # More of the last node there is not: its probe would be the safe weights themselves.
    for safe in fit.safest(bounds):
        assert np.abs(explored - safe).max(axis=1).min() > 1e-6


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_summed_stages_fill_the_cheapest_nodes_to_their_caps(direction: str) -> None:
    problem = Problem(
        (0.0,) * 3, (0.6, 0.6, 1.0), "maximize" if direction == "maximize" else "minimize"
    )

    def metric(weights: FloatArray) -> float:
        seconds = float(COSTS @ weights + 0.05)
        return 1.0 / seconds if direction == "maximize" else seconds

    observations, proposals = search("adaptive", problem, metric, 14)
    best = assess(problem, observations)
    assert proposals[-1].model == "total_time"
    assert best.best.shares == pytest.approx((0.6, 0.4, 0.0), abs=1e-6)
    assert best.convergence.converged


def test_few_trials_do_not_convince_however_well_they_fit() -> None:
    problem = Problem((1 / 12,) * 3, (1.0,) * 3, num_layers=12)
    measured = {(4, 2, 6): 18.4, (5, 6, 1): 32.0, (3, 5, 4): 20.1, (4, 7, 1): 32.5}
    measured |= {(7, 4, 1): 34.8, (6, 5, 1): 34.1, (1, 10, 1): 31.2}
    observations = [
        Observation(tuple(count / 12 for count in layers), tokens_per_s)
        for layers, tokens_per_s in measured.items()
    ]
    early = assess(problem, observations[:4]).convergence
    assert not early.converged
    assert early.reason.endswith("from the optimum, but 6 unknowns fit any 4 trials")
    assert assess(problem, observations).convergence.converged


def test_without_times_there_is_a_gaussian_process() -> None:
    def metric(weights: FloatArray) -> float:
        return 1.0 - 20.0 * float(((weights - np.array([0.5, 0.3, 0.2])) ** 2).sum())

    observations, proposals = search("adaptive", FREE, metric, 30)
    assert proposals[-1].model == "gaussian_process"
    best = assess(FREE, observations).best
    assert best.shares == pytest.approx((0.5, 0.3, 0.2), abs=0.05)


def test_bad_weights_do_not_blur_what_a_surrogate_proposes_from() -> None:
    optimum, rng = np.array([0.5, 0.3, 0.2]), np.random.default_rng(0)

    def metric(weights: FloatArray) -> float:  # the worse the rougher
        distance = float(((weights - optimum) ** 2).sum())
        return 1.0 - 20.0 * distance * (1.0 + 0.5 * rng.normal())

    near = Problem(tuple(optimum - 0.1), tuple(optimum + 0.1))
    observations = search("random", FREE, metric, 150)[0] + search("random", near, metric, 50)[0]
    trials = trials_from(observations, FREE)
    assert guide(trials, rng).noise < 0.5 * most_trusted(trials, rng).noise


def test_a_lucky_value_is_not_the_best_for_ever() -> None:
    good, lucky = (4 / 7, 2 / 7, 1 / 7), (1 / 3, 1 / 3, 1 / 3)
    observations = [Observation(good, slowest(np.array(good)))] * 6
    observations += [Observation(lucky, slowest(np.array(lucky)))] * 6 + [Observation(lucky, 3.0)]
    observations += search("random", FREE, slowest, 12)[0]
    assert assess(FREE, observations).best.shares == pytest.approx(good)


def test_the_classic_loop_ends_at_its_optimum() -> None:
    optimum = np.array([0.9, 0.1])
    problem = Problem((0.0, 0.0), (1.0, 1.0))

    def metric(weights: FloatArray) -> float:
        return 1.0 / max(float(((weights - optimum) ** 2).sum()), 1e-30)

    distances = []
    for seed in range(5):
        observations, _ = search("adaptive", problem, metric, 20, seed)
        best = assess(problem, observations).best
        distances.append(float(np.linalg.norm(np.array(best.shares) - optimum)))
    assert float(np.median(distances)) < 0.0005


def test_the_most_likely_concentration_is_found() -> None:
    alpha = np.array([0.7, 2.0, 5.0])
    drawn = np.random.default_rng(0).dirichlet(alpha, 20_000)
    assert most_likely_concentration(drawn) == pytest.approx(alpha, rel=0.05)


@pytest.mark.parametrize("partitions", [[[0.9, 0.1]] * 20, [[1.0, 0.0], [0.5, 0.5]] * 10])
def test_partitions_that_agree_or_hold_zeros_have_a_concentration(
    partitions: list[list[float]],
) -> None:
    alpha = most_likely_concentration(np.array(partitions))
    assert np.isfinite(alpha).all()
    assert (alpha > 0.0).all()


@pytest.mark.parametrize(
    "metric",
    [
        lambda weights: 1e-310 * (1.0 + weights[0]),
        lambda weights: 1e300 * (weights[0] - 0.5),
        lambda weights: 10.0 ** (600.0 * weights[0] - 300.0),
        lambda weights: 0.0,
    ],
    ids=["tiny", "huge of both signs", "wide", "zero"],
)
def test_any_finite_metric_gets_finite_answers(metric: Metric) -> None:
    observations, proposals = search("adaptive", FREE, lambda weights: float(metric(weights)), 6)
    assert np.isfinite([proposal.shares for proposal in proposals]).all()
    last = proposals[-1]
    assert last.predicted_metric is not None
    assert last.predicted_spread is not None
    assert np.isfinite([last.predicted_metric, last.predicted_spread]).all()
    assert np.isfinite(assess(FREE, observations).best.metric)


def test_of_many_whole_layer_splits_so_many_are_looked_at_as_a_model_can_take() -> None:
    problem = Problem((0.0,) * 256, (1.0,) * 256, num_layers=512)
    found = neighbours((2 / 512,) * 256, problem)
    assert MAX_NEIGHBOURS / 2 < len(set(found)) == len(found) <= MAX_NEIGHBOURS
    assert all(sum(shares) == 1 for shares in found)
