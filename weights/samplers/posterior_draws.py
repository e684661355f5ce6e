"""Draws from the posterior of the slowest-stage model, many chains at once.

A trial gives the time of the slowest stage, but not which stage that was, so the posterior has many
modes and ridges. Every chain starts at the mode for perturbed data and a perturbed prior, which is
nearly a draw already (randomize-then-optimize: Bardsley et al., SIAM Journal on Scientific
Computing 36, 2014). The climb to the mode begins with a soft maximum, in which a trial moves all
stages that may have been its slowest. The maximum hardens step by step; a hard one would never
revise the first guess of the slowest stage. Metropolis-within-Gibbs steps follow, node by node.

Two numbers describe a node: `log_stage_time`, the log time of its stage at its reference share,
where a trial bounds it most tightly, and `latency_share`, the share of latency in that time. At g
times that share, the stage takes exp(log_stage_time) (latency_share + (1 - latency_share) g).
"""

from dataclasses import dataclass

import numpy as np

from common.numerics import FloatArray, scipy
from weights.samplers.trials import Trials
from weights.simplex import IntArray

CHAINS = 16
SLOPE_DEVIATION = 0.7  # spread of the log slopes about their mean: a factor of 4 apart is common
PART_SHAPE = 6.0  # the share of latency in a stage's time is Beta(1, 6): a seventh on average
ODDS_MEAN, ODDS_DEVIATION = -2.2, 1.2  # its logit, as a normal distribution
NOISE, NOISE_TRIALS = 0.02, 2.0  # prior of the noise: inverse gamma, counts like two trials
START_NOISE = 0.05
SOFTNESS = np.geomspace(0.1, 0.02, 20)  # softness of the maximum, for each step of the climb


@dataclass(slots=True)
class Chains:
    """The state of all chains during one fit. One thread."""

    trial_costs: FloatArray  # [trials]
    growth: FloatArray  # [n, trials], shares over reference shares
    reference: FloatArray  # [n]
    log_stage_time: FloatArray  # [chains, n]
    latency_share: FloatArray  # [chains, n]
    noise: FloatArray  # [chains]

    @property
    def log_slopes(self) -> FloatArray:
        return _log_slopes(self.log_stage_time, self.latency_share, self.reference)

    @property
    def log_latencies(self) -> FloatArray:
        log_latencies: FloatArray = self.log_stage_time + np.log(self.latency_share)
        return log_latencies

    def sweep(self, rng: np.random.Generator) -> None:
        """Update every node once, then the noise."""
        chains, n = self.log_stage_time.shape
        stages = np.moveaxis(_stages(self.log_stage_time, self.latency_share, self.growth), 1, 0)
        later = np.full((n + 1, *stages.shape[1:]), -np.inf)  # slowest of this and later nodes
        later[:-1] = np.maximum.accumulate(stages[::-1])[::-1]
        new_log_time, new_share = self._moved((stages >= later[0]).sum(axis=2).T, rng)
        new_stages = np.moveaxis(_stages(new_log_time, new_share, self.growth), 1, 0)

        pull = SLOPE_DEVIATION / np.sqrt(n)
        center = self.log_slopes.mean(axis=1) + pull * rng.normal(size=chains)
        old, new = (
            (_log_slopes(log_stage_time, latency_share, self.reference) - center[:, None]) ** 2
            for log_stage_time, latency_share in (
                (self.log_stage_time, self.latency_share),
                (new_log_time, new_share),
            )
        )
        threshold = np.log(rng.random((chains, n))) + (new - old) / (2.0 * SLOPE_DEVIATION**2)
        is_taken = np.zeros((chains, n), dtype=bool)
        passed = np.full(stages.shape[1:], -np.inf)  # slowest of the earlier nodes
        squares = self._squares(later[0])
        for node in range(n):
            others = np.maximum(passed, later[node + 1])
            new_squares = self._squares(np.maximum(new_stages[node], others))
            taken = threshold[:, node] < (squares - new_squares) / (2.0 * self.noise**2)
            squares = np.where(taken, new_squares, squares)
            passed = np.maximum(passed, np.where(taken[:, None], new_stages[node], stages[node]))
            is_taken[:, node] = taken
        self.log_stage_time = np.where(is_taken, new_log_time, self.log_stage_time)
        self.latency_share = np.where(is_taken, new_share, self.latency_share)

        shape = 0.5 * (NOISE_TRIALS + len(self.trial_costs))
        scale = 0.5 * (NOISE_TRIALS * NOISE**2 + squares)
        self.noise = np.sqrt(scale / rng.gamma(shape, size=chains))

    def _moved(
        self, num_shown: IntArray, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Returns one proposal per chain and node: (log_stage_time, latency_share).

        Half of them change the stage's time a little (by the precision of the trials that this node
        decides), a quarter change it much, and a quarter redraw `latency_share` from its prior.
        """
        shape = self.log_stage_time.shape
        kind = rng.integers(4, size=shape)
        little = 1.5 * self.noise[:, None] / np.sqrt(1.0 + num_shown)
        little *= np.exp(rng.normal(size=shape))
        width = np.choose(kind, [little, little, SLOPE_DEVIATION, 0.0])
        latency_share = np.where(kind == 3, rng.beta(1.0, PART_SHAPE, shape), self.latency_share)
        return self.log_stage_time + width * rng.normal(size=shape), latency_share

    def _squares(self, slowest: FloatArray) -> FloatArray:
        squares: FloatArray = ((self.trial_costs - slowest) ** 2).sum(axis=1)
        return squares


def start(trials: Trials, rng: np.random.Generator) -> Chains:
    """Returns chains that have climbed to a mode. They start a little below the tightest bound of
    each stage, because no stage is slower than any trial."""
    with np.errstate(divide="ignore"):
        bounds = trials.costs[:, None] - np.log(trials.shares)  # [trials, n], of the log slope
    tightest, nodes = bounds.argmin(axis=0), np.arange(bounds.shape[1])
    is_used = np.isfinite(bounds[tightest, nodes])
    reference = np.where(is_used, trials.shares[tightest, nodes], 1.0 / len(nodes))
    log_stage_time = np.where(is_used, trials.costs[tightest], np.median(trials.costs))
    shape = (CHAINS, len(nodes))
    climb = _Climb.perturbed(trials, reference, shape, rng)
    latency_share = np.clip(rng.beta(1.0, PART_SHAPE, shape), 1e-3, 0.9)
    log_stage_time, odds = climb.to_the_top(
        log_stage_time - 0.3 * rng.random(shape), scipy.special.logit(latency_share)
    )
    noise = np.full(CHAINS, START_NOISE)
    return Chains(
        trials.costs, climb.growth, reference, log_stage_time, scipy.special.expit(odds), noise
    )


@dataclass(frozen=True, slots=True)
class _Misses:
    """Residuals in standard deviations, and how the soft maximum distributes each trial."""

    of_trials: FloatArray  # [chains, trials]
    of_slopes: FloatArray  # [chains, n]
    of_odds: FloatArray  # [chains, n]
    blame: FloatArray  # [chains, n, trials], sums to 1 over nodes; a hard maximum blames one node

    @property
    def loss(self) -> FloatArray:
        parts = (self.of_trials, self.of_slopes, self.of_odds)
        loss: FloatArray = np.sum([(part**2).sum(axis=1) for part in parts], axis=0)
        return loss


@dataclass(frozen=True, slots=True)
class _Climb:
    """Levenberg-Marquardt for all chains at once, on (log_stage_time, odds = logit(latency_share)).

    The prior adds two residuals per node to the residuals of the trials: one of the log slope,
    whose derivative by odds is -latency_share, and one of the odds.
    """

    data: FloatArray  # [chains, trials], perturbed
    slope_means: FloatArray  # [chains, n], perturbed, about the mean of all nodes
    odds_means: FloatArray  # [chains, n], perturbed
    growth: FloatArray  # [n, trials]
    reference: FloatArray  # [n]

    @classmethod
    def perturbed(
        cls, trials: Trials, reference: FloatArray, shape: tuple[int, int], rng: np.random.Generator
    ) -> "_Climb":
        return cls(
            trials.costs + START_NOISE * rng.normal(size=(shape[0], len(trials))),
            SLOPE_DEVIATION * rng.normal(size=shape),
            ODDS_MEAN + ODDS_DEVIATION * rng.normal(size=shape),
            (trials.shares / reference).T,
            reference,
        )

    def to_the_top(
        self, log_stage_time: FloatArray, odds: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        damping = np.ones(len(log_stage_time))
        for softness in SOFTNESS:
            center = _log_slopes(log_stage_time, scipy.special.expit(odds), self.reference).mean(
                axis=1
            )
            misses = self._misses(log_stage_time, odds, center, softness)
            step_log_time, step_odds = self._step(misses, scipy.special.expit(odds), damping)
            new_log_time, new_odds = log_stage_time + step_log_time, odds + step_odds
            is_better = self._misses(new_log_time, new_odds, center, softness).loss < misses.loss
            damping = np.where(is_better, damping / 3.0, damping * 4.0)
            log_stage_time = np.where(is_better[:, None], new_log_time, log_stage_time)
            odds = np.where(is_better[:, None], new_odds, odds)
        return log_stage_time, odds

    def _misses(
        self, log_stage_time: FloatArray, odds: FloatArray, center: FloatArray, softness: float
    ) -> _Misses:
        latency_share = scipy.special.expit(odds)
        stages = _stages(log_stage_time, latency_share, self.growth)
        slowest = stages.max(axis=1)
        blame = np.exp((stages - slowest[:, None, :]) / softness)
        total = blame.sum(axis=1)
        slopes = _log_slopes(log_stage_time, latency_share, self.reference) - center[:, None]
        return _Misses(
            (self.data - slowest - softness * np.log(total)) / START_NOISE,
            (self.slope_means - slopes) / SLOPE_DEVIATION,
            (self.odds_means - odds) / ODDS_DEVIATION,
            blame / total[:, None, :],
        )

    def _step(
        self, misses: _Misses, latency_share: FloatArray, damping: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        n = latency_share.shape[1]
        share = latency_share[:, :, None]
        by_odds = share * (1.0 - share) * (1.0 - self.growth)
        by_odds /= share + (1.0 - share) * self.growth
        blame = misses.blame / START_NOISE
        jacobian = np.concatenate([blame, blame * by_odds], axis=1)  # [chains, 2 n, trials]
        gram = jacobian @ np.swapaxes(jacobian, 1, 2)
        right = (jacobian @ misses.of_trials[..., None])[..., 0]

        nodes, precision = np.arange(n), SLOPE_DEVIATION**-2
        gram[:, nodes, nodes] += precision
        gram[:, nodes, n + nodes] -= precision * latency_share
        gram[:, n + nodes, nodes] -= precision * latency_share
        gram[:, n + nodes, n + nodes] += precision * latency_share**2 + ODDS_DEVIATION**-2
        right[:, :n] += misses.of_slopes / SLOPE_DEVIATION
        right[:, n:] += (
            misses.of_odds / ODDS_DEVIATION - latency_share * misses.of_slopes / SLOPE_DEVIATION
        )
        diagonal = np.arange(2 * n)
        gram[:, diagonal, diagonal] *= 1.0 + damping[:, None]
        step = np.clip(np.linalg.solve(gram, right[..., None])[..., 0], -1.0, 1.0)
        return step[:, :n], step[:, n:]


def _stages(
    log_stage_time: FloatArray, latency_share: FloatArray, growth: FloatArray
) -> FloatArray:
    """Returns log seconds [chains, n, trials] of every stage."""
    latency_share = latency_share[:, :, None]
    stages: FloatArray = log_stage_time[:, :, None] + np.log(
        latency_share + (1.0 - latency_share) * growth
    )
    return stages


def _log_slopes(
    log_stage_time: FloatArray, latency_share: FloatArray, reference: FloatArray | float
) -> FloatArray:
    log_slopes: FloatArray = log_stage_time + np.log1p(-latency_share) - np.log(reference)
    return log_slopes
