"""`Fit`: the protocol of models of the cost, which draw from their posteriors."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from common.numerics import BoolArray, FloatArray, scipy
from weights.search import ROUNDING, Problem
from weights.simplex import nearest_point

RESOLUTION = 0.01  # least standard deviation of costs


@dataclass(frozen=True, slots=True)
class Bounds:
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(cls, problem: Problem) -> "Bounds":
        return cls(np.array(problem.min_weightings), np.array(problem.max_weightings))

    def hold(self, points: FloatArray) -> BoolArray:
        """Returns which of `points` [points, n] are within the bounds; all if none is, because they
        are from older bounds."""
        above, below = points >= self.lower - ROUNDING, points <= self.upper + ROUNDING
        held: BoolArray = np.asarray((above & below).all(axis=1))
        return held if held.any() else ~held

    def nearest(self, point: FloatArray) -> FloatArray:
        return nearest_point(point, self.lower, self.upper)


class Fit(Protocol):
    """A model fitted to trials. Costs are logarithms of times (`trials.Scale`)."""

    @property
    def name(self) -> str: ...

    @property
    def noise(self) -> float:
        """The standard deviation of one measured cost."""

    @property
    def evidence(self) -> FloatArray:
        """The log density of each trial given all others (leave one out). Models are compared by it
        (Vehtari, Gelman & Gabry, Statistics and Computing 27, 2017)."""

    def costs(self, points: FloatArray) -> FloatArray:
        """Returns noise-free costs [draws, points]: each row is one possible truth."""

    def optima(self, bounds: Bounds) -> FloatArray:
        """Returns the optimum of each possible truth, [draws, n]."""

    def safest(self, bounds: Bounds) -> FloatArray:
        """Returns optima [some, n] that account for all possible truths together."""

    def explore(self, bounds: Bounds, rng: np.random.Generator) -> FloatArray:
        """Returns shares [n] whose measurement would be informative about the optimum."""


def log_density(residuals: FloatArray, deviation: FloatArray | float) -> FloatArray:
    """Returns the log density of a normal distribution. Adds RESOLUTION to deviations (in
    quadrature): a prediction exact to a millionth deserves no more trust than to a hundredth."""
    coarse = np.hypot(deviation, RESOLUTION)
    density: FloatArray = (
        -0.5 * (residuals / coarse) ** 2 - np.log(coarse) - 0.5 * np.log(2.0 * np.pi)
    )
    return density


def leave_one_out(log_likelihood: FloatArray) -> FloatArray:
    """Returns log p(trial | other trials) per trial, from draws given all trials [draws, trials].

    Importance sampling with weights 1 / likelihood, truncated at sqrt(draws) times their mean
    (Ionides, Journal of Computational and Graphical Statistics 17, 2008).
    """
    draws = len(log_likelihood)
    log_weights = -log_likelihood
    ceiling = scipy.special.logsumexp(log_weights, axis=0) - 0.5 * np.log(draws)
    log_weights = np.minimum(log_weights, ceiling)
    density: FloatArray = scipy.special.logsumexp(log_weights + log_likelihood, axis=0)
    density -= scipy.special.logsumexp(log_weights, axis=0)
    return density
