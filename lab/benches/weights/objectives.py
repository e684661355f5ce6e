"""Objectives to measure samplers with, which have a known optimum, caps and noise.

Needs numpy alone, because peers run it in a virtual environment of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]

MODEL_LAYERS = 32
SPREAD = 5.0  # ratio of the 95th to the 5th percentile of speeds
NOISE = 0.05  # standard deviation of the multiplicative noise
LATENCY = 0.2  # largest latency of a node, over the time that all nodes together need


@dataclass(frozen=True, slots=True)
class Task:
    """One seeded instance. `metric` is to be maximised; `regret` is 0 at the optimum."""

    upper: FloatArray
    metric: Callable[[FloatArray], float]
    regret: Callable[[FloatArray], float]
    noise: float
    num_layers: int | None = None

    def measure(self, weights: FloatArray, rng: np.random.Generator) -> float:
        return self.metric(weights) * max(0.05, 1.0 + self.noise * float(rng.normal()))


def make_task(kind: str, nodes: int, seed: int) -> Task:
    rng = np.random.default_rng([seed, nodes])
    if kind == "sse":
        return _sse(nodes, rng)
    cost = _random_cost(nodes, rng)
    if kind == "pipe":
        return _timed(cost, _random_caps(nodes, rng), _slowest)
    if kind == "tight":
        return _timed(cost, _tight_caps(nodes, rng), _slowest)
    if kind == "sum":
        return _timed(cost, _random_caps(nodes, rng), _total)
    if kind == "cliff":
        return _timed(cost, _random_caps(nodes, rng), _cliff(nodes, rng))
    if kind == "layers":
        return _whole_layers(cost)
    raise ValueError(f"no objective is called {kind}")


@dataclass(frozen=True, slots=True)
class _Cost:
    """Stage i takes slopes[i] * weights[i] + latencies[i] seconds."""

    slopes: FloatArray
    latencies: FloatArray

    def stages(self, weights: FloatArray) -> FloatArray:
        return weights * self.slopes + self.latencies


Combine: TypeAlias = Callable[[_Cost, FloatArray], FloatArray]  # weights [..., n] to seconds


def _random_cost(nodes: int, rng: np.random.Generator) -> _Cost:
    speeds = np.exp(np.log(SPREAD) / (2 * 1.645) * rng.normal(size=nodes))  # layers per second
    together_s = MODEL_LAYERS / speeds.sum()
    return _Cost(MODEL_LAYERS / speeds, LATENCY * together_s * rng.random(nodes))


def _random_caps(nodes: int, rng: np.random.Generator) -> FloatArray:
    caps: FloatArray = np.minimum(1.0, rng.uniform(1.2, 4.0, nodes) / nodes)
    return caps


def _tight_caps(nodes: int, rng: np.random.Generator) -> FloatArray:
    caps = rng.uniform(0.5, 1.5, nodes)
    tight: FloatArray = 1.25 * caps / caps.sum()
    return tight


def _slowest(cost: _Cost, weights: FloatArray) -> FloatArray:
    slowest: FloatArray = cost.stages(weights).max(axis=-1)
    return slowest


def _total(cost: _Cost, weights: FloatArray) -> FloatArray:
    total: FloatArray = cost.stages(weights).sum(axis=-1)
    return total


def _cliff(nodes: int, rng: np.random.Generator) -> Combine:
    """Returns the slowest of stages that are not linear. A stage grows with its share to the power
    of 1.6, and takes 1.5 times as long if the share exceeds a random memory size."""
    memory = rng.uniform(0.5, 2.0, nodes) / nodes

    def combine(cost: _Cost, weights: FloatArray) -> FloatArray:
        work = weights * (nodes * weights) ** 0.6 * np.where(weights > memory, 1.5, 1.0)
        slowest: FloatArray = (work * cost.slopes + cost.latencies).max(axis=-1)
        return slowest

    return combine


def _sse(nodes: int, rng: np.random.Generator) -> Task:
    optimum = rng.dirichlet(np.ones(nodes))

    def metric(weights: FloatArray) -> float:
        return 1.0 / max(float(((weights - optimum) ** 2).sum()), 1e-30)

    def regret(weights: FloatArray) -> float:
        return float(np.linalg.norm(weights - optimum))

    return Task(np.ones(nodes), metric, regret, noise=0.0)


def _timed(cost: _Cost, upper: FloatArray, combine: Combine) -> Task:
    upper = upper if upper.sum() > 1.0 else upper * 1.05 / upper.sum()

    def metric(weights: FloatArray) -> float:
        return 1.0 / float(combine(cost, weights))

    best = 1.0 / _least_seconds(cost, upper, combine)
    return Task(upper, metric, lambda weights: 1.0 - metric(weights) / best, NOISE)


def _least_seconds(cost: _Cost, upper: FloatArray, combine: Combine) -> float:
    if combine is _total:  # the cheapest nodes are filled to their caps
        order = np.argsort(cost.slopes)
        filled = np.minimum(np.cumsum(upper[order]), 1.0)
        weights = np.empty_like(upper)
        weights[order] = np.diff(filled, prepend=0.0)
        return float(_total(cost, weights))
    # The share that fits within t seconds grows with t: bisect for the whole model.
    low, high = 0.0, float(combine(cost, upper))
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _fits_within(cost, upper, combine, middle).sum() >= 1.0:
            high = middle
        else:
            low = middle
    return high


def _fits_within(cost: _Cost, upper: FloatArray, combine: Combine, seconds: float) -> FloatArray:
    """Returns the largest share of each node whose stage ends within `seconds`."""
    low, high = np.zeros_like(upper), upper.copy()
    stages = np.eye(len(upper), dtype=bool)
    for _ in range(60):
        middle = 0.5 * (low + high)
        alone = np.where(stages, middle, 0.0)  # row i: only node i works
        fits = combine(cost, alone) <= seconds
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    # If the node is not the bottleneck, the others' latency decides whether its share fits.
    return low


def _whole_layers(cost: _Cost) -> Task:
    nodes, layers = len(cost.slopes), MODEL_LAYERS

    def metric(weights: FloatArray) -> float:
        return 1.0 / float(_slowest(cost, to_layers(weights, layers) / layers))

    bars = np.array(list(combinations(range(layers + nodes - 1), nodes - 1)))
    ends = np.column_stack([np.full(len(bars), -1), bars, np.full(len(bars), layers + nodes - 1)])
    splits = np.diff(ends, axis=1) - 1
    best = 1.0 / float(_slowest(cost, splits / layers).min())
    upper = np.ones(nodes)
    return Task(upper, metric, lambda weights: 1.0 - metric(weights) / best, NOISE, layers)


def to_layers(weights: FloatArray, layers: int) -> FloatArray:
    """Rounds weights to whole layers by largest remainder."""
    exact = weights * layers
    whole = np.floor(exact + 1e-9)
    missing = layers - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1.0
    return whole
