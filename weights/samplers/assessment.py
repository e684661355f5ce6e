"""Assesses a history with the chosen model: best shares, convergence and concentration."""

from collections.abc import Sequence

import numpy as np

from common.numerics import FloatArray, scipy
from weights.samplers.cost_model import Bounds, Fit
from weights.samplers.dirichlet import matched_concentration
from weights.samplers.model_choice import most_trusted
from weights.samplers.trials import Trials, succeeded, trials_from
from weights.search import Assessment, Best, Convergence, Observation, Problem

SEED = 0  # fixed, so that the same history gets the same answer
MIN_POINTS = 3  # distinct measured shares needed to fit a model
EQUAL = 1e-6  # costs with a smaller difference count as equal
WORTHWHILE = 0.01  # further trials pay above this gain in cost
UNKNOWN_PER_NODE = 2  # a speed and a latency; as many trials as unknowns fit any model
INTERVAL = (0.05, 0.95)


def assess(problem: Problem, observations: Sequence[Observation]) -> Assessment:
    """Returns the assessment of a history with at least one observation."""
    bounds = Bounds.of(problem)
    trials = trials_from(succeeded(observations, problem), problem)
    if len(trials.points) < MIN_POINTS or not trials.metrics.any():
        return _without_model(trials_from(observations, problem), bounds)
    fit = most_trusted(trials, np.random.default_rng(SEED))
    optima = fit.optima(bounds)
    costs = fit.costs(np.concatenate([trials.points, optima]))
    expected = costs[:, : len(trials.points)].mean(axis=0)
    point = _best_point(trials, np.where(bounds.hold(trials.points), expected, np.inf))
    return Assessment(
        model=fit.name,
        best=_best(trials, point, costs[:, point]),
        convergence=_convergence(costs[:, point], costs, fit, trials),
        concentration=tuple(matched_concentration(optima).tolist()),
    )


def _without_model(trials: Trials, bounds: Bounds) -> Assessment:
    """Returns the best measured mean. Its interval is by Student's t; infinite without repeats."""
    means = trials.means
    worse = trials.scale.slope_sign * means
    best = int(np.where(bounds.hold(trials.points), worse, np.inf).argmin())
    degrees = len(trials) - len(means)
    half = np.inf
    if degrees:
        squares = ((trials.metrics - means[trials.point_of]) ** 2).sum()
        repeats = int((trials.point_of == best).sum())
        t = scipy.special.stdtrit(degrees, INTERVAL[1])
        half = float(t * np.sqrt(squares / degrees / repeats))
    metric = float(means[best])
    return Assessment(
        model="random",
        best=Best(tuple(trials.points[best].tolist()), metric, metric - half, metric + half),
        convergence=Convergence(False, f"no model before {MIN_POINTS} different weights"),
        concentration=None,
    )


def _best_point(trials: Trials, expected: FloatArray) -> int:
    """Returns the point of least expected cost; among equals the best measured one."""
    equal = np.flatnonzero(expected <= expected.min() + EQUAL)
    return int(equal[(trials.scale.slope_sign * trials.means[equal]).argmin()])


def _best(trials: Trials, point: int, costs: FloatArray) -> Best:
    """Returns the estimate at a point, from draws of the noise-free cost there."""
    ends = np.quantile(costs, INTERVAL)
    mean, *interval = trials.scale.metrics(np.array([costs.mean(), *ends]))
    low, high = sorted(float(end) for end in interval)
    return Best(tuple(trials.points[point].tolist()), float(mean), low, high)


def _convergence(best: FloatArray, costs: FloatArray, fit: Fit, trials: Trials) -> Convergence:
    """Returns whether further trials pay, by the mean gain from perfect knowledge: by how much the
    optimum beats the best measured shares, averaged over all possible truths."""
    gain = float(-np.expm1(np.minimum(costs.min(axis=1) - best, 0.0)).mean()) + 0.0  # no -0.0
    reason = f"the {fit.name} model expects {gain:.1%} more from the optimum"
    if gain > WORTHWHILE:
        return Convergence(False, f"{reason}; one trial's noise is {fit.noise:.1%}")
    unknown = UNKNOWN_PER_NODE * trials.points.shape[1]
    if len(trials) <= unknown:
        return Convergence(False, f"{reason}, but {unknown} unknowns fit any {len(trials)} trials")
    return Convergence(True, f"{reason}, {WORTHWHILE:.0%} or less")
