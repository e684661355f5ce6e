"""Samplers that draw from a Dirichlet distribution: the uniform one or a learned one. Fits it to
partitions, by moments or maximum likelihood.

Maximum likelihood uses Newton's method (Minka, Estimating a Dirichlet distribution, 2000). Equal
partitions or zeros have no maximum, so shares are kept above zero and the concentration is bounded.
"""

import numpy as np

from common.numerics import FloatArray, scipy
from weights.partition import snapped
from weights.samplers.cost_model import Bounds
from weights.samplers.trials import succeeded, trials_from
from weights.search import Proposal, ProposalRequest
from weights.simplex import sample_dirichlet, sample_uniform

MIN_TRIALS = 50
BEST = 20
SMALLEST_SHARE = 1e-6
MAX_TOTAL = 1e9  # bound on the sum of alpha; shares then spread by about 1e-5
MIN_OF_A_NODE = 1e-2
STEPS, ENOUGH = 1000, 1e-6


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


def most_likely_concentration(partitions: FloatArray) -> FloatArray:
    """Returns alpha [n] of the Dirichlet law under which `partitions` [count, n] are most likely.
    Solves digamma(alpha_i) - digamma(sum(alpha)) = mean(log x_i) by Newton's method, starting from
    matched moments."""
    kept = np.maximum(partitions, SMALLEST_SHARE)
    kept = kept / kept.sum(axis=1, keepdims=True)
    mean_logs = np.log(kept).mean(axis=0)
    alpha = matched_concentration(kept)
    for _ in range(STEPS):
        # Minka's eq. 15-18: the Hessian is diagonal plus a constant, so its inverse is closed.
        gradient = scipy.special.digamma(alpha.sum()) - scipy.special.digamma(alpha) + mean_logs
        curvature = -scipy.special.polygamma(1, alpha)
        shared = scipy.special.polygamma(1, alpha.sum())
        common = (gradient / curvature).sum() / (1.0 / shared + (1.0 / curvature).sum())
        step = (gradient - common) / curvature
        new = _bounded(np.clip(alpha - step, alpha / 2.0, alpha * 2.0))  # stays positive
        if float(np.abs(new / alpha - 1.0).max()) < ENOUGH:
            return new
        alpha = new
    return alpha


def matched_concentration(partitions: FloatArray) -> FloatArray:
    """Returns alpha with the mean and the total variance of `partitions` [count, n]."""
    mean = partitions.mean(axis=0)
    variance = float(partitions.var(axis=0).sum())
    total = float((mean * (1.0 - mean)).sum()) / max(variance, 1e-300) - 1.0
    return _bounded(mean * max(total, 0.0))


def _bounded(alpha: FloatArray) -> FloatArray:
    bounded: FloatArray = np.maximum(
        alpha * min(1.0, MAX_TOTAL / max(float(alpha.sum()), 1e-300)), MIN_OF_A_NODE
    )
    return bounded
