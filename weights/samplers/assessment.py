"""Best, convergence and concentration, as the trusted model sees them."""

from collections.abc import Sequence

import numpy as np

from common.numerics import scipy
from weights.samplers.concentration import matched_concentration
from weights.samplers.cost_model import Bounds, Fit
from weights.samplers.model_choice import most_trusted
from weights.samplers.trials import Trials, succeeded, trials_from
from weights.search import Assessment, Best, Convergence, Observation, Problem
from weights.simplex import FloatArray

SEED = 0  # the same history gets the same answer
MIN_POINTS = 3  # different shares measured, before any model is fitted
EQUAL = 1e-6  # difference up to which costs count as the same
WORTHWHILE = 0.01  # gain in cost below which further trials do not pay
UNKNOWN_PER_NODE = 2  # a speed and a latency; so many trials contradict no model
INTERVAL = (0.05, 0.95)


def assess(problem: Problem, observations: Sequence[Observation]) -> Assessment:
    """Returns best, convergence and concentration. Needs at least one observation."""
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
    """Returns the best mean as told, with Student's t over all repeats; infinite without any."""
    means = np.bincount(trials.point_of, trials.metrics) / np.bincount(trials.point_of)
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
    """Returns the point of least expected cost; of equals, as exact metrics have, the best told."""
    told = np.bincount(trials.point_of, trials.metrics) / np.bincount(trials.point_of)
    equal = np.flatnonzero(expected <= expected.min() + EQUAL)
    return int(equal[(trials.scale.slope_sign * told[equal]).argmin()])


def _best(trials: Trials, point: int, costs: FloatArray) -> Best:
    """Returns the estimate at a point; `costs` are draws of the noise-free cost there."""
    ends = np.quantile(costs, INTERVAL)
    mean, *interval = trials.scale.metrics(np.array([costs.mean(), *ends]))
    low, high = sorted(float(end) for end in interval)
    return Best(tuple(trials.points[point].tolist()), float(mean), low, high)


def _convergence(best: FloatArray, costs: FloatArray, fit: Fit, trials: Trials) -> Convergence:
    """Returns whether trials still pay: in each possible truth the best measured is worse than the
    optimum by some part of its time, and the mean of it is what perfect knowledge would gain."""
    gain = float(-np.expm1(np.minimum(costs.min(axis=1) - best, 0.0)).mean()) + 0.0  # no -0.0
    said = f"the {fit.name} model expects {gain:.1%} more from the optimum"
    if gain > WORTHWHILE:
        return Convergence(False, f"{said}; one trial's noise is {fit.noise:.1%}")
    unknown = UNKNOWN_PER_NODE * trials.points.shape[1]
    if len(trials) <= unknown:
        return Convergence(False, f"{said}, but {unknown} unknowns fit any {len(trials)} trials")
    return Convergence(True, f"{said}, {WORTHWHILE:.0%} or less")
