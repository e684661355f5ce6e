"""The data types of a partition search, and of its samplers.

A search asks for shares (one share of the model per node, summing to 1), measures them, tells the
metric, and asks again. All values are immutable and consist of plain Python numbers: any thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Direction = Literal["maximize", "minimize"]
Shares = tuple[float, ...]

ROUNDING = 1e-6  # how far rounding may move shares beyond their bounds


@dataclass(frozen=True, slots=True)
class Problem:
    """The bounds of proposals, and the direction of the metric.

    The bounds are per node, within [0, 1]. The caller ensures that sum(min_weightings) <= 1 <=
    sum(max_weightings). With `num_layers` every share is a multiple of 1 / num_layers.
    """

    min_weightings: Shares
    max_weightings: Shares
    direction: Direction = "maximize"
    num_layers: int | None = None

    @property
    def number_of_nodes(self) -> int:
        return len(self.max_weightings)

    def allows(self, shares: Sequence[float]) -> bool:
        bounds = zip(self.min_weightings, shares, self.max_weightings, strict=True)
        return all(low - ROUNDING <= share <= high + ROUNDING for low, share, high in bounds)


@dataclass(frozen=True, slots=True)
class Observation:
    """One measurement. The same shares may be measured repeatedly, because metrics are noisy."""

    shares: Shares
    metric: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Shares to measure next.

    `model` is the name of the model that proposed them, or `random` before one can be fitted.
    `predicted_metric` is the model's prediction, and `predicted_spread` the standard deviation of a
    measurement that it expects; both are None if the model predicts nothing.
    """

    shares: Shares
    model: str
    predicted_metric: float | None = None
    predicted_spread: float | None = None


@dataclass(frozen=True, slots=True)
class Best:
    """The best measured shares, accounting for noise.

    `metric` estimates their noise-free metric, with a 90 % interval [low, high]. It may be worse
    than the best single measurement, which may have been lucky.
    """

    shares: Shares
    metric: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Convergence:
    """Whether a search has converged, so that further trials do not pay, and why."""

    converged: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Assessment:
    """The assessment of a history from any sampler.

    `concentration` has the parameters alpha of a Dirichlet distribution of good partitions. Its
    mean is the estimated optimum; their sum says how certain it is. None before it can be fitted.
    """

    model: str
    best: Best
    convergence: Convergence
    concentration: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """A request for `count` proposals, to be measured in parallel with the `pending` shares, whose
    results are not told yet. Observations are in the order they were told."""

    problem: Problem
    observations: Sequence[Observation]
    pending: Sequence[Shares]
    count: int
    rng: np.random.Generator


Sampler = Callable[[ProposalRequest], list[Proposal]]
"""Proposes shares within the bounds. Pure: any thread with its own `rng`."""
