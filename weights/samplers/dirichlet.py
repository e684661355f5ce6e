"""The classic sampler: draws from a Dirichlet distribution fitted to the best partitions.

Maximum likelihood on the best 20 of more than 50 trials; uniform draws before.
"""

from collections.abc import Sequence

import numpy as np

from weights.partition import snapped
from weights.samplers.concentration import most_likely_concentration
from weights.samplers.cost_model import Bounds
from weights.samplers.trials import succeeded, trials_from
from weights.search import Observation, Problem, Proposal, Shares
from weights.simplex import sample_dirichlet, sample_uniform

MIN_TRIALS = 50
BEST = 20


class DirichletSampler:
    def propose(
        self,
        problem: Problem,
        observations: Sequence[Observation],
        pending: Sequence[Shares],
        count: int,
        rng: np.random.Generator,
    ) -> list[Proposal]:
        """Returns independent draws, so pending trials do not matter."""
        bounds = Bounds.of(problem)
        if len(observations) <= MIN_TRIALS:
            model, drawn = "random", sample_uniform(bounds.lower, bounds.upper, count, rng)
        else:
            trials = trials_from(succeeded(observations, problem), problem)
            best = trials.shares[np.argsort(trials.costs, kind="stable")[:BEST]]
            concentration = most_likely_concentration(best)
            model = "dirichlet_mle"
            drawn = sample_dirichlet(concentration, bounds.lower, bounds.upper, count, rng)
        return [Proposal(snapped(tuple(row), problem), model) for row in drawn.tolist()]
