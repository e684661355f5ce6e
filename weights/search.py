"""The nouns of a partition search, and the protocol of a sampler that carries it on.

A search asks for shares (one share of the model per node, summing to 1), measures them, tells the
metric, and asks again. Everything here is immutable and in plain Python numbers: any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

Direction = Literal["maximize", "minimize"]
Shares = tuple[float, ...]

ROUNDING = 1e-6  # how far rounding may put shares beyond their bounds


@dataclass(frozen=True, slots=True)
class Problem:
    """The bounds of proposals, and the direction of the metric.

    The bounds are per node, within [0, 1]; the caller sees to `sum(min_weightings) <= 1 <=
    sum(max_weightings)`. With `num_layers` every share is a multiple of 1 / num_layers.
    """

    min_weightings: Shares
    max_weightings: Shares
    direction: Direction = "maximize"
    num_layers: int | None = None

    @property
    def number_of_nodes(self) -> int:
        return len(self.max_weightings)

    def allows(self, shares: Shares) -> bool:
        bounds = zip(self.min_weightings, shares, self.max_weightings, strict=True)
        return all(low - ROUNDING <= share <= high + ROUNDING for low, share, high in bounds)


@dataclass(frozen=True, slots=True)
class Observation:
    """One measurement. The same shares may be measured often: the metric is noisy."""

    shares: Shares
    metric: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Shares to measure next.

    `model` names what made them, `random` while there is too little to fit. `predicted_metric` is
    what the model expects there and `predicted_spread` the standard deviation it expects of a
    measurement around it; both are None where the model predicts nothing.
    """

    shares: Shares
    model: str
    predicted_metric: float | None = None
    predicted_spread: float | None = None


@dataclass(frozen=True, slots=True)
class Best:
    """The measured shares that are best when noise is accounted for.

    `metric` estimates the noise-free metric there, with its 90 % interval [low, high]; it may be
    worse than the best value ever told, which luck selects.
    """

    shares: Shares
    metric: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Convergence:
    """The verdict on further trials, and a sentence that gives the reason."""

    converged: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the history says, whatever proposed it.

    `concentration` is the Dirichlet distribution of good partitions (parameters alpha, their mean
    the belief about the optimum, their sum its certainty); None while there is too little to fit.
    """

    model: str
    best: Best
    convergence: Convergence
    concentration: tuple[float, ...] | None


class Sampler(Protocol):
    """Chooses what to measure next: a pure function. Any thread with its own `rng`."""

    def propose(
        self,
        problem: Problem,
        observations: Sequence[Observation],
        pending: Sequence[Shares],
        count: int,
        rng: np.random.Generator,
    ) -> list[Proposal]:
        """Returns `count` shares within the bounds, to be measured in parallel with the `pending`
        ones (asked for and not yet told). Observations come in the order they were told in."""
