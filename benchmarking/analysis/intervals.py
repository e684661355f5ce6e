"""95 % confidence intervals: over repeats, and within one run over blocks of its requests.

Requests of one run are not independent samples, because neighbours met the same queue. Within a run
the interval of a mean is Student's t over the means of blocks (batch means, Conway, 1963). That of
a change of any statistic is a bootstrap that draws whole blocks (Künsch, 1989). Both are too narrow
if a queue lasts longer than a block. Repeats are better evidence, and are used if there are any.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.numerics import FloatArray, scipy

LEVEL = 0.95
BLOCKS = 20
MIN_DRAWN = 10  # least values of a bootstrap; with fewer its intervals are too narrow
DRAWS = 500

MAX_DRAWN = 1 << 21  # most values that are drawn at once, which bounds memory

Statistic = Callable[[FloatArray], FloatArray]  # reduces the last axis


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds of its 95 % interval, which are infinite without evidence."""

    value: float
    low: float
    high: float

    def holds(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __str__(self) -> str:
        bounds = f" [{self.low:.4g}, {self.high:.4g}]" if np.isfinite(self.high) else ""
        return f"{self.value:.4g}{bounds}"


def mean(values: FloatArray) -> FloatArray:
    return np.asarray(np.mean(values, axis=-1))


def quantile(percent: float) -> Statistic:
    """Returns a quantile as a statistic, interpolated linearly between order statistics."""
    return lambda values: np.asarray(np.percentile(values, percent, axis=-1))


def students_t(freedom: float) -> float:
    """Returns half the width of a 95 % interval, in standard errors."""
    return float(scipy.special.stdtrit(freedom, (1 + LEVEL) / 2))


def over_repeats(figures: Sequence[float]) -> Interval:
    """Returns the mean of a figure over independent repeats, with Student's t interval."""
    value = float(np.mean(figures))
    if len(figures) < 2:
        return Interval(value, -np.inf, np.inf)
    error = float(np.std(figures, ddof=1)) / len(figures) ** 0.5
    half = students_t(len(figures) - 1) * error
    return Interval(value, value - half, value + half)


def change_over_repeats(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Returns after / before - 1 for the means of independent repeats, with Welch's t interval
    relative to the mean before."""
    base = float(np.mean(before))
    value = float(np.mean(after)) / base - 1
    if min(len(before), len(after)) < 2:
        return Interval(value, -np.inf, np.inf)
    spreads = [float(np.var(figures, ddof=1)) / len(figures) for figures in (before, after)]
    if sum(spreads) == 0:
        return Interval(value, value, value)
    freedom = sum(spreads) ** 2 / sum(
        spread**2 / (len(figures) - 1)
        for spread, figures in zip(spreads, (before, after), strict=True)
    )
    half = students_t(freedom) * sum(spreads) ** 0.5 / base
    return Interval(value, value - half, value + half)


def mean_within_run(values: Sequence[float]) -> Interval:
    """Returns the mean of one run's values, which are in the order in which requests were due."""
    blocks = _blocks(np.asarray(values, dtype=np.float64))
    found = over_repeats([float(mean(block)) for block in blocks])
    shift = float(np.mean(values)) - found.value  # blocks differ in size by one at most
    return Interval(found.value + shift, found.low + shift, found.high + shift)


def change_within_runs(
    before: Sequence[float], after: Sequence[float], statistic: Statistic
) -> Interval:
    """Returns after / before - 1 for the `statistic` of two runs, whose values are in the order of
    their schedule. That of `before` must not be 0. Too few values in a run give no bounds."""
    if min(len(before), len(after)) < MIN_DRAWN:
        value = float(statistic(np.asarray(after)) / statistic(np.asarray(before))) - 1
        return Interval(value, -np.inf, np.inf)
    first = np.asarray(before, dtype=np.float64)
    second = np.asarray(after, dtype=np.float64)
    rng = np.random.default_rng(0)
    drawn, base = _drawn(second, statistic, rng), _drawn(first, statistic, rng)
    changes = drawn[base != 0] / base[base != 0] - 1
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(changes, [tail, 100 - tail])
    value = float(statistic(second) / statistic(first)) - 1
    return Interval(value, float(low), float(high))


def _drawn(sample: FloatArray, statistic: Statistic, rng: np.random.Generator) -> FloatArray:
    """Returns the `statistic` of DRAWS samples, each composed of random blocks of neighbours."""
    blocks = _blocks(np.arange(sample.size))
    sizes, begins = (np.array(each) for each in zip(*((b.size, b[0]) for b in blocks), strict=True))
    chosen = rng.integers(len(blocks), size=(DRAWS, len(blocks)))
    lengths = sizes[chosen].sum(axis=1)
    within = np.arange(sizes.max())
    drawn = np.empty(DRAWS)
    for length in np.unique(lengths):  # there are few, because blocks differ in size by at most one
        alike = np.flatnonzero(lengths == length)
        for batch in np.array_split(alike, -(-alike.size * length // MAX_DRAWN)):
            blocks_of_batch = chosen[batch, :, np.newaxis]
            places = (begins[blocks_of_batch] + within)[within < sizes[blocks_of_batch]]
            drawn[batch] = statistic(sample[places].reshape(batch.size, length))
    return drawn


def _blocks(sample: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return np.array_split(sample, min(BLOCKS, sample.size))
