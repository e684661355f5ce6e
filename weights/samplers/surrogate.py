"""The model for costs without known structure: a Gaussian process over the shares.

The kernel is Matern 5/2 on square roots of the shares (Hellinger distance, because 0.01 more
matters most to a small share). Length scale and noise are chosen by marginal likelihood (Rasmussen
& Williams, Gaussian Processes for Machine Learning, 2006, ch. 5), the amplitude in closed form. One
eigendecomposition per length scale serves all noise levels.
"""

from dataclasses import dataclass

import numpy as np

from common.numerics import FloatArray, scipy
from weights.samplers.cost_model import Bounds, log_density
from weights.samplers.trials import Trials
from weights.simplex import sample_uniform

LENGTHS = np.geomspace(0.1, 3.0, 5)
NOISES = np.geomspace(1e-4, 1.0, 9)  # standard deviations relative to the amplitude
DRAWS = 48
CANDIDATES = 128  # candidates of each kind
LIKELY = 64  # candidates that may be optima; limited, because joint draws are slow
STEPS = np.geomspace(0.003, 0.3, 4)  # lengths of steps from the best points


@dataclass(frozen=True, slots=True)
class Surrogate:
    roots: FloatArray  # [trials, n], square roots of the shares
    best: FloatArray  # [few, n], shares of the cheapest trials
    solved: FloatArray  # K^-1 (costs - mean)
    factor: tuple[FloatArray, bool]  # Cholesky of K
    mean: float
    amplitude: float
    length: float
    noise: float
    evidence: FloatArray
    lowest: float  # least posterior mean at a trial
    seed: int
    name: str = "gaussian_process"

    def predict(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns mean and covariance of the noise-free costs."""
        roots = np.sqrt(points)
        cross = self.amplitude**2 * _matern(roots, self.roots, self.length)
        mean = self.mean + cross @ self.solved
        own = self.amplitude**2 * _matern(roots, roots, self.length)
        covariance: FloatArray = own - cross @ scipy.linalg.cho_solve(self.factor, cross.T)
        return mean, covariance

    def costs(self, points: FloatArray) -> FloatArray:
        mean, covariance = self.predict(points)
        values, vectors = scipy.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        rng = np.random.default_rng(self.seed)
        costs: FloatArray = mean + rng.normal(size=(DRAWS, len(points))) @ root.T
        return costs

    def optima(self, bounds: Bounds) -> FloatArray:
        candidates = self._candidates(bounds, np.random.default_rng(self.seed))
        likely = candidates[np.argsort(-self._improvement(candidates))[:LIKELY]]
        optima: FloatArray = likely[self.costs(likely).argmin(axis=1)]
        return optima

    def safest(self, bounds: Bounds) -> FloatArray:
        candidates = self._candidates(bounds, np.random.default_rng(self.seed))
        return candidates[[self._improvement(candidates).argmax()]]

    def explore(self, bounds: Bounds, rng: np.random.Generator) -> FloatArray:
        candidates = self._candidates(bounds, rng)
        chosen: FloatArray = candidates[self._improvement(candidates).argmax()]
        return chosen

    def _improvement(self, points: FloatArray) -> FloatArray:
        """Returns the expected improvement on the least posterior mean (Jones, Schonlau & Welch,
        Journal of Global Optimization 13, 1998)."""
        cross = self.amplitude**2 * _matern(np.sqrt(points), self.roots, self.length)
        mean = self.mean + cross @ self.solved
        explained = np.einsum("ij,ji->i", cross, scipy.linalg.cho_solve(self.factor, cross.T))
        deviation = np.sqrt(np.maximum(self.amplitude**2 - explained, 1e-18))
        gap = self.lowest - mean
        z = gap / deviation
        beyond = deviation * np.exp(-0.5 * z**2) / 2.5066
        improvement: FloatArray = gap * scipy.special.ndtr(z) + beyond
        return improvement

    def _candidates(self, bounds: Bounds, rng: np.random.Generator) -> FloatArray:
        """Returns random points, and points at steps of all lengths from the best points: in random
        directions, and from one node to another."""
        anywhere = sample_uniform(bounds.lower, bounds.upper, CANDIDATES, rng)
        n = anywhere.shape[1]
        starts = self.best[rng.integers(len(self.best), size=2 * CANDIDATES)]
        steps = rng.normal(size=starts.shape) / np.sqrt(n)
        pairs = rng.integers(n, size=(CANDIDATES, 2))
        steps[:CANDIDATES] = np.eye(n)[pairs[:, 0]] - np.eye(n)[pairs[:, 1]]
        lengths = rng.choice(STEPS, size=(2 * CANDIDATES, 1)) * rng.random((2 * CANDIDATES, 1))
        near = [bounds.nearest(row) for row in starts + lengths * steps]
        return np.concatenate([anywhere, near, self.best])


def fit_surrogate(trials: Trials, rng: np.random.Generator) -> Surrogate:
    roots, costs = np.sqrt(trials.shares), trials.costs
    mean = float(costs.mean())
    centered, count = costs - mean, len(costs)
    best_score, length, relative_noise, amplitude = -np.inf, 1.0, 1.0, 1.0
    for tried_length in LENGTHS:
        values, vectors = scipy.linalg.eigh(_matern(roots, roots, tried_length))
        along = (vectors.T @ centered) ** 2
        spectrum = np.maximum(values, 0.0) + NOISES[:, None] ** 2  # [noises, trials]
        variances = (along / spectrum).sum(axis=1) / count + 1e-12
        # A mild prior favours lengths of about half of the simplex.
        prior = -0.5 * (np.log(tried_length / 0.5) / 1.0) ** 2
        scores = -0.5 * (count * np.log(variances) + np.log(spectrum).sum(axis=1)) + prior
        if scores.max() > best_score:
            best_score, length = float(scores.max()), float(tried_length)
            relative_noise = float(NOISES[scores.argmax()])
            amplitude = float(np.sqrt(variances[scores.argmax()]))
    covariance = amplitude**2 * (
        _matern(roots, roots, length) + (relative_noise**2 + 1e-10) * np.eye(count)
    )
    factor = scipy.linalg.cho_factor(covariance, lower=True)
    inverse = scipy.linalg.cho_solve(factor, np.eye(count))
    solved = inverse @ centered
    missed, deviation = solved / inverse.diagonal(), 1.0 / np.sqrt(inverse.diagonal())
    noise = amplitude * relative_noise
    return Surrogate(
        roots=roots,
        best=trials.shares[np.argsort(costs)[:5]],
        solved=solved,
        factor=factor,
        mean=mean,
        amplitude=amplitude,
        length=length,
        noise=noise,
        evidence=log_density(missed, deviation),
        lowest=float((costs - noise**2 * solved).min()),
        seed=int(rng.integers(2**32)),
    )


def _matern(a: FloatArray, b: FloatArray, length: float) -> FloatArray:
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
    scaled = np.sqrt(5.0 * np.maximum(squares, 0.0)) / length
    correlation: FloatArray = (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
    return correlation
