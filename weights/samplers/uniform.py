"""The sampler without learning: draws shares uniformly within the bounds."""

from collections.abc import Sequence

import numpy as np

from weights.partition import snapped
from weights.search import Observation, Problem, Proposal, Shares
from weights.simplex import sample_uniform


class RandomSampler:
    def propose(
        self,
        problem: Problem,
        observations: Sequence[Observation],
        pending: Sequence[Shares],
        count: int,
        rng: np.random.Generator,
    ) -> list[Proposal]:
        lower, upper = np.array(problem.min_weightings), np.array(problem.max_weightings)
        drawn = sample_uniform(lower, upper, count, rng)
        return [Proposal(snapped(tuple(row), problem), "random") for row in drawn.tolist()]
