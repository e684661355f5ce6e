"""Draws from the posterior of the slowest-stage model, many chains at once.

A trial says what the slowest stage took and not which stage that was, so there are many modes and
ridges. Every chain starts at the mode for perturbed data and a perturbed prior, which is nearly a
draw already (randomize-then-optimize: Bardsley et al., SIAM Journal on Scientific Computing 36,
2014); Metropolis steps within Gibbs, one node at a time, do the rest.

Per node two numbers: `tight`, the log time of its stage at its reference share, where a trial
bounds it most tightly, and `part`, the part of that time that is latency. At g times the reference
share its stage takes exp(tight) (part + (1 - part) g).
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from weights.samplers.trials import Trials
from weights.simplex import FloatArray, IntArray

CHAINS = 16
SLOPE_DEVIATION = 0.7  # of the log slopes about their mean: a factor of 4 apart is common
PART_SHAPE = 6.0  # latency is Beta(1, 6) of a stage's time: a seventh, more is possible
ODDS_MEAN, ODDS_DEVIATION = -2.2, 1.2  # the same on the logit scale, as a normal
NOISE, NOISE_TRIALS = 0.02, 2.0  # prior of the noise: inverse gamma, worth two trials
START_NOISE, CLIMB_STEPS = 0.05, 12


@dataclass(slots=True)
class Chains:
    """The state of all chains. One thread, for the length of one fit."""

    trial_costs: FloatArray  # [trials]
    growth: FloatArray  # [trials, n], shares over reference shares
    reference: FloatArray  # [n]
    tight: FloatArray  # [chains, n]
    part: FloatArray  # [chains, n]
    noise: FloatArray  # [chains]

    @property
    def log_slopes(self) -> FloatArray:
        return _log_slopes(self.tight, self.part, self.reference)

    @property
    def log_latencies(self) -> FloatArray:
        log_latencies: FloatArray = self.tight + np.log(self.part)
        return log_latencies

    def sweep(self, rng: np.random.Generator) -> None:
        """Every node once, then the noise."""
        chains, n = self.tight.shape
        pull = SLOPE_DEVIATION / np.sqrt(n)
        mean_log_slope = self.log_slopes.mean(axis=1) + pull * rng.normal(size=chains)
        stages = np.moveaxis(_stages(self.tight, self.part, self.growth), 2, 0)
        later = np.full((n + 1, *stages.shape[1:]), -np.inf)  # slowest of the nodes from here on
        later[:-1] = np.maximum.accumulate(stages[::-1])[::-1]
        slowest = np.full(stages.shape[1:], -np.inf)  # of the nodes already passed
        for node in range(n):
            others = np.maximum(slowest, later[node + 1])
            stage = self._step(node, stages[node], others, mean_log_slope, rng)
            slowest = np.maximum(slowest, stage)
        squares = ((self.trial_costs - slowest) ** 2).sum(axis=1)
        shape = 0.5 * (NOISE_TRIALS + len(self.trial_costs))
        scale = 0.5 * (NOISE_TRIALS * NOISE**2 + squares)
        self.noise = np.sqrt(scale / rng.gamma(shape, size=chains))

    def _step(
        self,
        node: int,
        stage: FloatArray,
        others: FloatArray,
        mean_log_slope: FloatArray,
        rng: np.random.Generator,
    ) -> FloatArray:
        """One proposal per chain for one node, taken or not. Returns the node's stage, log seconds
        [chains, trials].

        Half of the chains move the stage's time a little (by what as many trials as show this node
        can tell), a quarter by far, and a quarter draw the latency's part anew from its prior.
        """
        chains = len(stage)
        tight, part = self.tight[:, node], self.part[:, node]
        kind = rng.integers(4, size=chains)
        num_shown = (stage >= others).sum(axis=1)
        little = 1.5 * self.noise / np.sqrt(1.0 + num_shown) * np.exp(rng.normal(size=chains))
        width = np.choose(kind, [little, little, SLOPE_DEVIATION, 0.0])
        new_tight = tight + width * rng.normal(size=chains)
        new_part = np.where(kind == 3, rng.beta(1.0, PART_SHAPE, chains), part)
        growth = self.growth[:, [node]]
        new_stage = _stages(new_tight[:, None], new_part[:, None], growth)[..., 0]

        squares, new_squares = (
            ((self.trial_costs - np.maximum(one, others)) ** 2).sum(axis=1)
            for one in (stage, new_stage)
        )
        offset, new_offset = (
            _log_slopes(one, its_part, self.reference[node]) - mean_log_slope
            for one, its_part in ((tight, part), (new_tight, new_part))
        )
        log_ratio = (squares - new_squares) / (2.0 * self.noise**2)
        log_ratio += (offset**2 - new_offset**2) / (2.0 * SLOPE_DEVIATION**2)
        is_taken = np.log(rng.random(chains)) < log_ratio
        self.tight[is_taken, node] = new_tight[is_taken]
        self.part[is_taken, node] = new_part[is_taken]
        return np.where(is_taken[:, None], new_stage, stage)


def start(trials: Trials, rng: np.random.Generator) -> Chains:
    """No stage is slower than a trial was: begin a little below the tightest of these bounds, and
    climb from there."""
    with np.errstate(divide="ignore"):
        bounds = trials.costs[:, None] - np.log(trials.weights)  # [trials, n], of the log slope
    tightest, nodes = bounds.argmin(axis=0), np.arange(bounds.shape[1])
    is_used = np.isfinite(bounds[tightest, nodes])
    reference = np.where(is_used, trials.weights[tightest, nodes], 1.0 / len(nodes))
    tight = np.where(is_used, trials.costs[tightest], np.median(trials.costs))
    shape = (CHAINS, len(nodes))
    climb = _Climb.perturbed(trials, reference, shape, rng)
    part = np.clip(rng.beta(1.0, PART_SHAPE, shape), 1e-3, 0.9)
    tight, odds = climb.to_the_top(tight - 0.3 * rng.random(shape), logit(part))
    noise = np.full(CHAINS, START_NOISE)
    return Chains(trials.costs, climb.growth, reference, tight, expit(odds), noise)


@dataclass(frozen=True, slots=True)
class _Climb:
    """Levenberg-Marquardt for all chains at once, on (tight, odds = logit(part)).

    A trial's residual depends on its slowest stage alone; the prior adds two residuals per node,
    of the log slope (whose derivative by odds is -part) and of the odds.
    """

    data: FloatArray  # [chains, trials], perturbed
    slope_means: FloatArray  # [chains, n], perturbed, about the mean of all nodes
    odds_means: FloatArray  # [chains, n], perturbed
    growth: FloatArray  # [trials, n]
    reference: FloatArray  # [n]

    @classmethod
    def perturbed(
        cls,
        trials: Trials,
        reference: FloatArray,
        shape: tuple[int, int],
        rng: np.random.Generator,
    ) -> "_Climb":
        return cls(
            trials.costs + START_NOISE * rng.normal(size=(shape[0], len(trials))),
            SLOPE_DEVIATION * rng.normal(size=shape),
            ODDS_MEAN + ODDS_DEVIATION * rng.normal(size=shape),
            trials.weights / reference,
            reference,
        )

    def to_the_top(self, tight: FloatArray, odds: FloatArray) -> tuple[FloatArray, FloatArray]:
        damping = np.ones(len(tight))
        for _ in range(CLIMB_STEPS):
            center = _log_slopes(tight, expit(odds), self.reference).mean(axis=1)
            step_tight, step_odds = self._step(tight, odds, center, damping)
            new_tight, new_odds = tight + step_tight, odds + step_odds
            is_better = self._loss(new_tight, new_odds, center) < self._loss(tight, odds, center)
            damping = np.where(is_better, damping / 3.0, damping * 4.0)
            tight = np.where(is_better[:, None], new_tight, tight)
            odds = np.where(is_better[:, None], new_odds, odds)
        return tight, odds

    def _loss(self, tight: FloatArray, odds: FloatArray, center: FloatArray) -> FloatArray:
        residuals = self._residuals(tight, odds, center)[1:]
        loss: FloatArray = np.sum([(part**2).sum(axis=1) for part in residuals], axis=0)
        return loss

    def _residuals(
        self, tight: FloatArray, odds: FloatArray, center: FloatArray
    ) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """Slowest node per trial, and the residuals of trials, slopes and odds, all in standard
        deviations."""
        part = expit(odds)
        stages = _stages(tight, part, self.growth)
        missed = (self.data - stages.max(axis=2)) / START_NOISE
        slopes = _log_slopes(tight, part, self.reference) - center[:, None]
        slopes_missed = (self.slope_means - slopes) / SLOPE_DEVIATION
        return (
            stages.argmax(axis=2),
            missed,
            slopes_missed,
            (self.odds_means - odds) / ODDS_DEVIATION,
        )

    def _step(
        self, tight: FloatArray, odds: FloatArray, center: FloatArray, damping: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        chains, n = tight.shape
        slowest, missed, slopes_missed, odds_missed = self._residuals(tight, odds, center)
        part = expit(odds)
        rows, columns = np.arange(chains)[:, None], np.arange(missed.shape[1])
        growth, its_part = self.growth[columns, slowest], part[rows, slowest]
        stage = its_part + (1.0 - its_part) * growth
        jacobian = np.zeros((*missed.shape, 2 * n))
        jacobian[rows, columns, slowest] = 1.0 / START_NOISE
        by_odds = (1.0 - growth) / stage * its_part * (1.0 - its_part)
        jacobian[rows, columns, n + slowest] = by_odds / START_NOISE
        transposed = np.swapaxes(jacobian, 1, 2)
        gram, right = transposed @ jacobian, (transposed @ missed[..., None])[..., 0]

        nodes, precision = np.arange(n), SLOPE_DEVIATION**-2
        gram[:, nodes, nodes] += precision
        gram[:, nodes, n + nodes] -= precision * part
        gram[:, n + nodes, nodes] -= precision * part
        gram[:, n + nodes, n + nodes] += precision * part**2 + ODDS_DEVIATION**-2
        right[:, :n] += slopes_missed / SLOPE_DEVIATION
        right[:, n:] += odds_missed / ODDS_DEVIATION - part * slopes_missed / SLOPE_DEVIATION
        diagonal = np.arange(2 * n)
        gram[:, diagonal, diagonal] *= 1.0 + damping[:, None]
        step = np.clip(np.linalg.solve(gram, right[..., None])[..., 0], -1.0, 1.0)
        return step[:, :n], step[:, n:]


def _stages(tight: FloatArray, part: FloatArray, growth: FloatArray) -> FloatArray:
    """Log seconds [chains, trials, n] of every stage."""
    part = part[:, None, :]
    stages: FloatArray = tight[:, None, :] + np.log(part + (1.0 - part) * growth)
    return stages


def _log_slopes(tight: FloatArray, part: FloatArray, reference: FloatArray | float) -> FloatArray:
    log_slopes: FloatArray = tight + np.log1p(-part) - np.log(reference)
    return log_slopes
