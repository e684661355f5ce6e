"""The model of a pipeline: the slowest stage decides, time = max_i(a_i w_i + c_i)."""

from dataclasses import dataclass

import numpy as np

from common.numerics import FloatArray
from weights.samplers.cost_model import Bounds, leave_one_out, log_density
from weights.samplers.posterior_draws import start
from weights.samplers.trials import Trials

KEPT_SWEEPS = (3, 5, 7)  # sweeps after which the states of all chains are kept
PESSIMISM = (0.0, 0.5, 1.0, 1.5, 2.0)  # deviations by which slopes are raised for safe shares


@dataclass(frozen=True, slots=True)
class SlowestStage:
    slopes: FloatArray  # [draws, n], seconds for the whole model
    latencies: FloatArray  # [draws, n], seconds
    noises: FloatArray  # [draws]
    evidence: FloatArray
    name: str = "slowest_stage"

    @property
    def noise(self) -> float:
        return float(np.sqrt((self.noises**2).mean()))

    def costs(self, points: FloatArray) -> FloatArray:
        return _log_slowest(self.slopes, self.latencies, points)

    def optima(self, bounds: Bounds) -> FloatArray:
        return fastest_shares(self.slopes, self.latencies, bounds)

    def safest(self, bounds: Bounds) -> FloatArray:
        """Returns the optima for mean slopes, and for slopes raised where nodes are less known."""
        logs = np.log(self.slopes)
        pessimism = np.array(PESSIMISM)[:, None]
        slopes = np.exp(logs.mean(axis=0) + pessimism * logs.std(axis=0))
        latencies = np.tile(self.latencies.mean(axis=0), (len(PESSIMISM), 1))
        return fastest_shares(slopes, latencies, bounds)

    def explore(self, bounds: Bounds, rng: np.random.Generator) -> FloatArray:
        """Returns, half of the time, the optimum of one possible truth (Thompson sampling).
        Otherwise raises the share of the least known node whose bound allows it, so that this node
        is the slowest and the trial measures it alone."""
        if rng.random() < 0.5:
            drawn: FloatArray = rng.choice(self.optima(bounds))
            return drawn
        safe = self.safest(bounds)[PESSIMISM.index(1.0)]
        stages = np.log(self.slopes * safe + self.latencies)
        mean, deviation = stages.mean(axis=0), stages.std(axis=0)
        at_bound = np.log(self.slopes * bounds.upper + self.latencies)
        can_be_slowest = (at_bound > stages.max(axis=1, keepdims=True)).mean(axis=0)
        least_known = int(np.argmax(can_be_slowest * deviation))
        others = np.arange(len(safe)) != least_known
        raise_to = (mean + 0.5 * deviation)[others].max() + deviation[least_known]
        factor = np.exp(np.clip(raise_to - mean[least_known], 0.0, np.log(4.0)))
        probe = safe.copy()
        probe[least_known] = min(bounds.upper[least_known], max(factor * safe[least_known], 1e-3))
        probe[others] *= (1.0 - probe[least_known]) / max(float(safe[others].sum()), 1e-9)
        return bounds.nearest(probe)


def fastest_shares(slopes: FloatArray, latencies: FloatArray, bounds: Bounds) -> FloatArray:
    """Returns the shares with the fastest slowest stage, for each row of `slopes` [rows, n].

    In t seconds, node i can take (t - c_i) / a_i, clipped to its bounds. Bisects for the t at which
    the shares sum to 1.
    """

    def shares(seconds: FloatArray) -> FloatArray:
        fitting = (seconds[:, None] - latencies) / slopes
        return np.clip(fitting, bounds.lower, bounds.upper)

    low, high = np.zeros(len(slopes)), (slopes * bounds.upper + latencies).max(axis=1)
    for _ in range(40):
        middle = 0.5 * (low + high)
        is_enough = shares(middle).sum(axis=1) >= 1.0
        low, high = np.where(is_enough, low, middle), np.where(is_enough, middle, high)
    return np.array([bounds.nearest(row) for row in shares(high)])


def fit_slowest_stage(trials: Trials, rng: np.random.Generator) -> SlowestStage:
    chains = start(trials, rng)
    kept = []
    for sweep in range(max(KEPT_SWEEPS) + 1):
        chains.sweep(rng)
        if sweep in KEPT_SWEEPS:
            kept.append((np.exp(chains.log_slopes), np.exp(chains.log_latencies), chains.noise))
    slopes, latencies, noises = (np.concatenate(part) for part in zip(*kept, strict=True))
    missed = trials.costs - _log_slowest(slopes, latencies, trials.shares)
    density = log_density(missed, noises[:, None])
    return SlowestStage(slopes, latencies, noises, leave_one_out(density))


def _log_slowest(slopes: FloatArray, latencies: FloatArray, points: FloatArray) -> FloatArray:
    stages = slopes[:, None, :] * points + latencies[:, None, :]
    costs: FloatArray = np.log(stages.max(axis=2))
    return costs
