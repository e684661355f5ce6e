"""The default sampler: fits all models of the cost, and asks the model that predicts best.

Two of three trials explore where the chosen model learns most about the optimum. One in three takes
the best shares in expectation, so that good shares have been measured whenever a search stops.
"""

from collections.abc import Collection, Sequence

import numpy as np

from common.numerics import FloatArray
from weights.partition import neighbours, snapped
from weights.samplers.assessment import MIN_POINTS
from weights.samplers.cost_model import Bounds, Fit
from weights.samplers.dirichlet import propose_at_random
from weights.samplers.model_choice import guide
from weights.samplers.trials import SAME, Trials, succeeded, trials_from
from weights.search import Observation, Problem, Proposal, ProposalRequest, Shares
from weights.simplex import sample_uniform

EXPLOIT_EVERY = 3
MAX_REDRAWS = 16  # redraws of shares that have failed
QUIET = 1e-3  # noise of a cost below which a repeat is useless


def propose_adaptively(request: ProposalRequest) -> list[Proposal]:
    problem, observations, rng = request.problem, request.observations, request.rng
    history = list(succeeded(observations, problem))
    if len({each.shares for each in history}) < MIN_POINTS:
        return propose_at_random(request)
    failed = {each.shares for each in observations} - {each.shares for each in history}
    # Running trials are assumed to give the results that the model expects.
    for shares in request.pending:
        history.append(_Step(problem, history, rng).expected(shares))
    proposals = []
    for _ in range(request.count):
        step = _Step(problem, history, rng)
        proposals.append(step.proposal(failed))
        history.append(step.expected(proposals[-1].shares))
    return proposals


class _Step:
    """One choice, given the history. One thread."""

    def __init__(
        self, problem: Problem, history: Sequence[Observation], rng: np.random.Generator
    ) -> None:
        self._problem, self._rng = problem, rng
        self._bounds = Bounds.of(problem)
        self._trials: Trials = trials_from(history, problem)
        self._fit: Fit = guide(self._trials, rng)

    def proposal(self, failed: Collection[Shares]) -> Proposal:
        is_exploring = len(self._trials) % EXPLOIT_EVERY
        shares = self._exploring() if is_exploring else self._best_in_expectation()
        for _ in range(MAX_REDRAWS):
            if shares not in failed:
                break
            anywhere = sample_uniform(self._bounds.lower, self._bounds.upper, 1, self._rng)
            shares = self._snapped(anywhere[0])
        costs = self._fit.costs(np.array([shares]))[:, 0]
        expected = self.expected(shares)
        deviation = float(np.hypot(costs.std(), self._fit.noise))
        spread = self._trials.scale.deviation(deviation, expected.metric)
        return Proposal(shares, self._fit.name, expected.metric, spread)

    def expected(self, shares: Shares) -> Observation:
        cost = self._fit.costs(np.array([shares])).mean(axis=0)
        metric = self._trials.scale.metrics(cost)
        return Observation(shares, float(metric[0]))

    def _exploring(self) -> Shares:
        explored = self._snapped(self._fit.explore(self._bounds, self._rng))
        if self._problem.num_layers is None or not self._is_known(explored):
            return explored
        # Whole-layer splits are few, so take the best unmeasured neighbour instead of a repeat.
        return self._best_of(neighbours(explored, self._problem), or_else=explored)

    def _best_in_expectation(self) -> Shares:
        candidates = np.concatenate(
            [self._fit.safest(self._bounds), self._fit.optima(self._bounds)]
        )
        best = self._snapped(candidates[self._fit.costs(candidates).mean(axis=0).argmin()])
        if self._problem.num_layers is None:
            return best
        around = [best, *neighbours(best, self._problem)]
        best = around[int(self._fit.costs(np.array(around)).mean(axis=0).argmin())]
        if self._fit.noise < QUIET and self._is_known(best):
            return self._best_of(neighbours(best, self._problem), or_else=best)
        return best

    def _best_of(self, splits: Sequence[Shares], or_else: Shares) -> Shares:
        """Returns the unmeasured split that is best in expectation; `or_else` without one."""
        unknown = [shares for shares in splits if not self._is_known(shares)]
        if not unknown:
            return or_else
        return unknown[int(self._fit.costs(np.array(unknown)).mean(axis=0).argmin())]

    def _is_known(self, shares: Shares) -> bool:
        offsets = np.abs(self._trials.points - np.array(shares)).max(axis=1)
        return bool((offsets < SAME).any())

    def _snapped(self, shares: FloatArray) -> Shares:
        return snapped(tuple(shares.tolist()), self._problem)
