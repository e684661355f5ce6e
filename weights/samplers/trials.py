"""A history as arrays: the costs of trials, and which trials repeat the same shares."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.numerics import FloatArray
from weights.partition import snapped
from weights.search import Observation, Problem
from weights.simplex import IntArray

ROUNDING = 1e-12
MOST_LOG = 600.0  # bound on the log of a predicted size, so that it is neither 0 nor infinite
SAME = 1e-9  # points whose shares all differ by less count as the same


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts between metrics and costs. Costs are of order 1, minimised, and have even noise.

    Metrics of one sign are times or rates. Their cost is the log of the time (the inverse of a
    rate), which makes proportional noise even. For other metrics the cost is the metric itself.
    """

    is_log: bool
    metric_sign: float  # sign of the metrics, if all have the same
    sign: float  # sign of the cost's slope over the log of a metric's size, or over the metric
    origin: float
    unit: float

    @classmethod
    def of(cls, metrics: FloatArray, problem: Problem) -> "Scale":
        sign = -1.0 if problem.direction == "maximize" else 1.0
        if (metrics > 0.0).all() or (metrics < 0.0).all():
            # To minimise -tokens/s or maximise -seconds, their size goes in the other direction.
            metric_sign = float(np.sign(metrics[0]))
            slope = sign * metric_sign
            origin = slope * float(np.median(_log_times(metrics, slope)))
            return cls(True, metric_sign, slope, origin, 1.0)
        origin = float(np.median(metrics))
        return cls(False, 1.0, sign, origin, float(np.abs(metrics - origin).max()) or 1.0)

    @property
    def slope_sign(self) -> float:
        """1 if a larger metric costs more, -1 if it costs less."""
        return self.sign * self.metric_sign

    def costs(self, metrics: FloatArray) -> FloatArray:
        raw = _log_times(metrics, self.sign) if self.is_log else self.sign * metrics
        return (raw - self.sign * self.origin) / self.unit

    def metrics(self, costs: FloatArray) -> FloatArray:
        """Returns the metrics of costs: the inverse of `costs`."""
        raw: FloatArray = self.sign * costs * self.unit + self.origin
        return self.metric_sign * np.exp(np.clip(raw, -MOST_LOG, MOST_LOG)) if self.is_log else raw

    def deviation(self, of_cost: float, at_metric: float) -> float:
        """Returns the standard deviation of a metric for a small one of its cost."""
        return of_cost * (abs(at_metric) if self.is_log else self.unit)


@dataclass(frozen=True, slots=True)
class Trials:
    """All trials in the order told, and the distinct point of each."""

    scale: Scale
    metrics: FloatArray  # [trials]
    costs: FloatArray  # [trials], lower is better
    shares: FloatArray  # [trials, n]; rounded to whole layers, if there are any
    points: FloatArray  # [points, n], distinct
    point_of: IntArray  # [trials]

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def means(self) -> FloatArray:
        """The mean metric of each point."""
        return np.bincount(self.point_of, self.metrics) / np.bincount(self.point_of)

    def most_telling(self, count: int) -> "Trials":
        """Returns at most `count` trials: half the cheapest, half the newest."""
        if len(self) <= count:
            return self
        cheapest = np.argsort(self.costs, kind="stable")[: count // 2]
        newest = np.setdiff1d(np.arange(len(self)), cheapest)[-(count - count // 2) :]
        chosen = np.sort(np.concatenate([cheapest, newest]))
        return _trials(self.scale, self.metrics[chosen], self.costs[chosen], self.shares[chosen])


def trials_from(observations: Sequence[Observation], problem: Problem) -> Trials:
    metrics = np.array([observation.metric for observation in observations])
    shares = np.array([snapped(observation.shares, problem) for observation in observations])
    scale = Scale.of(metrics, problem)
    return _trials(scale, metrics, scale.costs(metrics), shares)


def succeeded(observations: Sequence[Observation], problem: Problem) -> Sequence[Observation]:
    """Returns the observations without failed trials, whose rate is 0. Returns all observations if
    every trial failed or metrics are not rates."""
    if problem.direction == "minimize" or any(each.metric < 0 for each in observations):
        return observations
    return [each for each in observations if each.metric] or observations


def _log_times(metrics: FloatArray, slope_sign: float) -> FloatArray:
    """Returns the logs of the times, or of the inverses of rates. Smaller fractions of the longest
    than ROUNDING are rounding errors (1 / error^2 near an optimum), and their models overflow."""
    logs: FloatArray = slope_sign * np.log(np.abs(metrics))
    return np.clip(logs, logs.max() + np.log(ROUNDING), None)


def _trials(scale: Scale, metrics: FloatArray, costs: FloatArray, shares: FloatArray) -> Trials:
    _, first, point_of = np.unique(
        np.round(shares / SAME), axis=0, return_index=True, return_inverse=True
    )
    return Trials(scale, metrics, costs, shares, shares[first], point_of.reshape(-1))
