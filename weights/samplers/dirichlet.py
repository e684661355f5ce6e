"""Samplers that draw from a Dirichlet distribution: the uniform one or a learned one."""

import numpy as np

from weights.partition import snapped
from weights.samplers.concentration import most_likely_concentration
from weights.samplers.cost_model import Bounds
from weights.samplers.trials import succeeded, trials_from
from weights.search import Proposal, ProposalRequest
from weights.simplex import sample_dirichlet, sample_uniform

MIN_TRIALS = 50
BEST = 20


def propose_at_random(request: ProposalRequest) -> list[Proposal]:
    """Draws shares uniformly within the bounds. Learns nothing."""
    bounds = Bounds.of(request.problem)
    drawn = sample_uniform(bounds.lower, bounds.upper, request.count, request.rng)
    return [Proposal(snapped(tuple(row), request.problem), "random") for row in drawn.tolist()]


def propose_by_dirichlet(request: ProposalRequest) -> list[Proposal]:
    """Draws from the Dirichlet distribution that fits the best 20 trials. Up to 50 trials, draws
    uniformly. Draws are independent, so pending trials do not matter."""
    problem, observations = request.problem, request.observations
    if len(observations) <= MIN_TRIALS:
        return propose_at_random(request)
    bounds = Bounds.of(problem)
    trials = trials_from(succeeded(observations, problem), problem)
    best = trials.shares[np.argsort(trials.costs, kind="stable")[:BEST]]
    concentration = most_likely_concentration(best)
    drawn = sample_dirichlet(concentration, bounds.lower, bounds.upper, request.count, request.rng)
    return [Proposal(snapped(tuple(row), problem), "dirichlet_mle") for row in drawn.tolist()]
