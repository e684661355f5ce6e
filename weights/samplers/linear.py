"""Models that are linear in their parameters, fitted to times by weighted least squares.

- total time of a single stream: sum_i b_i w_i (b_i include latency, because shares sum to 1);
- a bowl: time = c + k |w - optimum|^2, for unknown reasons.

Noise is proportional to the time, so residuals are relative to it. The posterior of the
coefficients is normal, with the noise at its estimate (empirical Bayes).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from common.numerics import FloatArray
from weights.samplers.cost_model import Bounds, log_density
from weights.samplers.trials import Trials

DRAWS = 48
SPEED_DEVIATION = 0.7  # relative deviation of b_i about their mean
NOISE = 1e-5  # prior of the noise, which counts like one trial
TINY = 1e-13  # share of the longest time; no prediction is shorter
WIDE = 1e3  # prior deviation of coefficients about which nothing is known


def _regress(
    features: FloatArray,
    seconds: FloatArray,
    prior_mean: FloatArray,
    prior_deviation: FloatArray,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray, float, FloatArray]:
    """Fits seconds ~ features @ coefficients with relative noise. Returns draws of the coefficients
    [draws, features], their mean, the noise, and the evidence. Leave-one-out residuals are the
    fit's over 1 - leverage (Rasmussen & Williams, Gaussian Processes, 2006, 5.4.2 in effect)."""
    relative = features / seconds[:, None]
    target = 1.0 - relative @ prior_mean
    scaled = relative * prior_deviation  # coefficients in units of their prior
    noise = 0.3
    left, singular, right = np.linalg.svd(scaled, full_matrices=False)
    along = left.T @ target
    for _ in range(12):
        shrink = singular**2 / (singular**2 + noise**2)
        residuals = target - left @ (shrink * along)
        degrees = max(len(target) - float(shrink.sum()), 0.0)
        noise = float(np.sqrt((residuals @ residuals + NOISE**2) / (degrees + 1.0)))
    shrink = singular**2 / (singular**2 + noise**2)
    mean = right.T @ (shrink / np.maximum(singular, 1e-300) * along)
    # Posterior deviation: noise / sqrt(s^2 + noise^2) along directions seen, 1 along all others.
    dimension = scaled.shape[1]
    basis = np.linalg.svd(scaled, full_matrices=True)[2]
    spread = np.ones(dimension)
    spread[: len(singular)] = noise / np.sqrt(singular**2 + noise**2)
    drawn = mean + (rng.normal(size=(DRAWS, dimension)) * spread) @ basis
    leverage = np.minimum((left**2) @ shrink, 1.0 - 1e-9)
    missed = residuals / (1.0 - leverage)
    deviation = noise / np.sqrt(1.0 - leverage)
    # log(measured / predicted), bounded where the predicted time is not positive.
    log_ratio = -np.log(np.maximum(1.0 - missed, np.exp(-20.0)))
    evidence = log_density(log_ratio, deviation)
    coefficients, mean = prior_mean + drawn * prior_deviation, prior_mean + mean * prior_deviation
    return coefficients, mean, noise, evidence


def _seconds(trials: Trials) -> FloatArray:
    """Returns times relative to the longest, so that nothing overflows."""
    seconds: FloatArray = np.exp(trials.costs - trials.costs.max())
    return seconds


@dataclass(frozen=True, slots=True)
class _Linear(ABC):
    coefficients: FloatArray  # [draws, features]
    mean: FloatArray  # [features]
    noise: float
    evidence: FloatArray
    unit: float  # log seconds

    @abstractmethod
    def optimum(self, coefficients: FloatArray, bounds: Bounds) -> FloatArray: ...

    def optima(self, bounds: Bounds) -> FloatArray:
        return np.array([self.optimum(row, bounds) for row in self.coefficients])

    def safest(self, bounds: Bounds) -> FloatArray:
        return self.optimum(self.mean, bounds)[None, :]

    def explore(self, bounds: Bounds, rng: np.random.Generator) -> FloatArray:
        """Returns the optimum of one possible truth (Thompson sampling)."""
        return self.optimum(rng.choice(self.coefficients), bounds)


@dataclass(frozen=True, slots=True)
class TotalTime(_Linear):
    name: str = "total_time"

    def costs(self, points: FloatArray) -> FloatArray:
        seconds = np.maximum(self.coefficients, TINY) @ points.T
        costs: FloatArray = np.log(seconds) + self.unit
        return costs

    def optimum(self, coefficients: FloatArray, bounds: Bounds) -> FloatArray:
        """Returns the linear program's solution: fills nodes to their caps, the cheapest first."""
        order = np.argsort(coefficients)
        spare = 1.0 - bounds.lower.sum()
        filled = np.minimum(np.cumsum((bounds.upper - bounds.lower)[order]), spare)
        shares = bounds.lower.copy()
        shares[order] += np.diff(filled, prepend=0.0)
        return bounds.nearest(shares)


def fit_total_time(trials: Trials, rng: np.random.Generator) -> TotalTime:
    n = trials.shares.shape[1]
    seconds = _seconds(trials)
    mean = float(np.median(seconds))
    regression = _regress(
        trials.shares, seconds, np.full(n, mean), np.full(n, mean * SPEED_DEVIATION), rng
    )
    return TotalTime(*regression, float(trials.costs.max()))


@dataclass(frozen=True, slots=True)
class Bowl(_Linear):
    """time = c + k |d|^2 + g . d, where d = w - center lies in the plane sum(d) = 0. Coefficients
    are c, k and g, in units of `reach`."""

    center: FloatArray
    plane: FloatArray  # [n, n - 1], orthonormal
    reach: float
    name: str = "bowl"

    def costs(self, points: FloatArray) -> FloatArray:
        features = _bowl_features(points, self.center, self.plane, self.reach)
        seconds = self.coefficients @ features.T
        costs: FloatArray = np.log(np.maximum(seconds, TINY)) + self.unit
        return costs

    def optimum(self, coefficients: FloatArray, bounds: Bounds) -> FloatArray:
        """Returns the constrained optimum: the nearest point, because level sets are spheres."""
        k, g = float(coefficients[1]), coefficients[2:]
        step = -g / (2.0 * max(k, 1e-9)) * self.reach
        return bounds.nearest(self.center + self.plane @ step)


def fit_bowl(trials: Trials, rng: np.random.Generator) -> Bowl:
    n = trials.shares.shape[1]
    center = trials.shares[trials.costs.argmin()]
    plane = np.linalg.svd(np.ones((1, n)))[2][1:].T
    reach = max(float(np.linalg.norm(trials.shares - center, axis=1).max()), 1e-9)
    features = _bowl_features(trials.shares, center, plane, reach)
    seconds = _seconds(trials)
    prior_mean = np.zeros(n + 1)
    coefficients, mean, noise, evidence = _regress(
        features, seconds, prior_mean, np.full(n + 1, WIDE), rng
    )
    if mean[1] <= 0.0:  # it has no lowest point
        evidence = np.full_like(evidence, -1e9)
    unit = float(trials.costs.max())
    return Bowl(coefficients, mean, noise, evidence, unit, center, plane, reach)


def _bowl_features(
    points: FloatArray, center: FloatArray, plane: FloatArray, reach: float
) -> FloatArray:
    offset = (points - center) @ plane / reach
    return np.column_stack([np.ones(len(points)), (offset**2).sum(axis=1), offset])
