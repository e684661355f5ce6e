"""The capped simplex {x : sum(x) = 1, lower <= x <= upper}: exact draws from it, and projection.

Uniform and Dirichlet vectors are independent variables x_i with densities proportional to

    h_i(x) = x^(alpha_i - 1) exp(-tilt x)   on [lower_i, upper_i],   given that they sum to 1;

on the simplex exp(-tilt sum(x)) is constant, so every tilt gives the same vectors (exponential
tilting; Asmussen & Glynn, Stochastic Simulation, 2007, ch. V-VI). The tilt is chosen to make 1 the
mean of the sum. Then all coordinates but one, the pivot j, are drawn; x_j is what is missing, and
the vector is kept with probability h_j(x_j) / max h_j, or 0 outside the bounds.

Draws are exact: kept vectors have the Dirichlet law on the body up to rounding (1e-15 absolute),
for any tilt and any tables below, which only decide how many draws are rejected. Few are: for
alpha >= 1 the densities are log-concave, a sum with standard deviation s has density over
1 / (10 s) at its mean, and the widest pivot has max h_j under 1 / s_j, so that at least one in
10 sqrt(n) is kept for any bounds. A body thinner than `POINT` is taken for a point.

With alpha < 1 a density may be infinite at 0. Then the pivot is the largest coordinate, which is
at least mean(x): j is drawn in proportion to max h_j there, over the mass of h_j by Simpson's rule
(1e-6), and vectors whose largest coordinate is another one are rejected. This keeps about one in
n^1.5 and is slow for hundreds of nodes (seconds a draw if all alpha are far below 1).
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from common.numerics import FloatArray, scipy

IntArray: TypeAlias = npt.NDArray[np.intp]

POINT = 1e-12  # a body with no more slack than this counts as a point
RATIO, CELLS = 1.2, 160  # cells grow by RATIO away from the mode, down to 1.2^-160 = 2e-13
MAX_LOG_TILT = 34.0  # argument of sinh: tilts to 3e14 reach bodies as thin as POINT
CHUNK = 1 << 18  # coordinates drawn at once


def sample_uniform(
    lower: FloatArray, upper: FloatArray, count: int, rng: np.random.Generator
) -> FloatArray:
    """Returns `count` points [count, n], uniformly distributed on the body."""
    return sample_dirichlet(np.ones_like(lower), lower, upper, count, rng)


def sample_dirichlet(
    concentration: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    count: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Returns `count` points [count, n] of the Dirichlet(`concentration`) law within the body. If
    the bounds' sums miss 1 by rounding, the body counts as one point."""
    points = np.tile(nearest_point(lower, lower, upper), (count, 1))
    is_free = upper > lower
    low, high = lower[is_free], upper[is_free]
    total = 1.0 - float(lower[~is_free].sum())
    if min(high.sum() - total, total - low.sum()) > POINT:
        marginals = _tilted_marginals(concentration[is_free], low, high, total)
        points[:, is_free] = _given_sum(marginals, total, count, rng)
    return points


def nearest_point(point: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Returns the Euclidean projection of `point` on the body: clip(point + shift), with the shift
    that makes the sum 1. If a bound leaves no room, returns that bound, scaled to sum to 1."""
    projected: FloatArray
    if upper.sum() <= 1.0 or lower.sum() >= 1.0:
        bound = upper if upper.sum() <= 1.0 else lower
        projected = bound / bound.sum()
        return projected
    # The sum is piecewise linear in the shift, with a bend wherever a coordinate meets a bound.
    bends = np.sort(np.concatenate([lower - point, upper - point]))
    sums = np.clip(point + bends[:, None], lower, upper).sum(axis=1)
    shift = np.interp(1.0, sums, bends)
    projected = np.clip(point + shift, lower, upper)
    return projected


@dataclass(frozen=True, slots=True)
class _Marginals:
    """The independent densities in t = x^min(alpha, 1), where each is bounded and unimodal.

    They lie under staircases. In each cell, a staircase is as high as the density at the cell's end
    nearer to the mode. Cells grow by RATIO away from the mode, so the staircase lies under the
    density stretched by RATIO: at least 1 / RATIO of its draws are kept, for any unimodal density.
    """

    concentration: FloatArray
    low: FloatArray
    high: FloatArray
    tilt: float
    peaks: FloatArray  # log of the density in t at its mode
    edges: FloatArray  # [n, cells + 1]
    heights: FloatArray  # [n, cells], relative to the peak

    @property
    def power(self) -> FloatArray:
        return np.minimum(self.concentration, 1.0)

    @property
    def rise(self) -> FloatArray:
        return np.maximum(self.concentration - 1.0, 0.0)

    def mass_and_mean(self) -> tuple[FloatArray, FloatArray]:
        """Returns per node the integral of h / exp(peak) and the mean, by Simpson's rule."""
        ends = np.stack([self.edges[:, :-1], self._middles(), self.edges[:, 1:]])
        x = ends ** (1.0 / self.power[:, None])
        log_density = _log_density(self.rise[:, None], x, self.tilt) - self.peaks[:, None]
        density = np.exp(log_density)
        simpson = np.array([1.0, 4.0, 1.0])[:, None, None] / 6.0 * np.diff(self.edges)
        mass = (simpson * density).sum(axis=(0, 2)) / self.power
        mean = (simpson * density * x).sum(axis=(0, 2)) / self.power / mass
        return mass, mean

    def _middles(self) -> FloatArray:
        return 0.5 * (self.edges[:, :-1] + self.edges[:, 1:])

    def draw(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Returns [count, n] independent draws."""
        n, cells = self.heights.shape
        masses = np.cumsum(self.heights * np.diff(self.edges), axis=1)
        ladder = (masses / masses[:, -1:] + np.arange(n)[:, None]).ravel()
        drawn = np.empty(count * n)
        missing = np.arange(count * n)
        while missing.size:
            node = missing % n
            cell = np.searchsorted(ladder, node + rng.random(missing.size), side="right")
            cell = np.minimum(cell - node * cells, cells - 1)
            left, right = self.edges[node, cell], self.edges[node, cell + 1]
            t = left + (right - left) * rng.random(missing.size)
            x = t ** (1.0 / self.power[node])
            density = np.exp(_log_density(self.rise[node], x, self.tilt) - self.peaks[node])
            is_kept = rng.random(missing.size) * self.heights[node, cell] <= density
            drawn[missing[is_kept]] = x[is_kept]
            missing = missing[~is_kept]
        return np.clip(drawn.reshape(count, n), self.low, self.high)


def _log_density(exponent: FloatArray | float, x: FloatArray, tilt: float) -> FloatArray:
    """Returns log(x^exponent exp(-tilt x)): log h with alpha - 1, or log h in t with max(., 0)."""
    log: FloatArray = scipy.special.xlogy(exponent, x) - tilt * x
    return log


def _tilted_marginals(
    concentration: FloatArray, low: FloatArray, high: FloatArray, total: float
) -> _Marginals:
    """Returns the marginals with the tilt that makes `total` the mean of their sum."""

    def excess(log_tilt: float) -> float:
        tilted = _marginals(concentration, low, high, float(np.sinh(log_tilt)))
        return float(tilted.mass_and_mean()[1].sum()) - total

    # The tolerance is small beside the sum's relative deviation, 1 / sqrt(sum(concentration)).
    log_tilt = scipy.optimize.brentq(excess, -MAX_LOG_TILT, MAX_LOG_TILT, xtol=1e-7)
    return _marginals(concentration, low, high, float(np.sinh(log_tilt)))


def _marginals(
    concentration: FloatArray, low: FloatArray, high: FloatArray, tilt: float
) -> _Marginals:
    power, rise = np.minimum(concentration, 1.0), np.maximum(concentration - 1.0, 0.0)
    mode = np.clip(rise / tilt, low, high) if tilt > 0.0 else high
    t_low, t_mode, t_high = low**power, mode**power, high**power
    shrinking = np.append(RATIO ** -np.arange(float(CELLS)), 0.0)
    falling = t_mode[:, None] - (t_mode - t_low)[:, None] * shrinking
    rising = t_mode[:, None] + (t_high - t_mode)[:, None] * shrinking[::-1]
    peaks = _log_density(rise, mode, tilt)
    edges = np.concatenate([falling, rising[:, 1:]], axis=1)
    nearer = np.concatenate([falling[:, 1:], rising[:, :-1]], axis=1) ** (1.0 / power[:, None])
    heights = np.exp(_log_density(rise[:, None], nearer, tilt) - peaks[:, None])
    return _Marginals(concentration, low, high, tilt, peaks, edges, heights)


def _given_sum(
    marginals: _Marginals, total: float, count: int, rng: np.random.Generator
) -> FloatArray:
    """Returns `count` independent draws of the marginals given that they sum to `total`."""
    n = marginals.low.size
    pivots, tops, must_be_largest = _pivots(marginals, total)
    kept: list[FloatArray] = []
    while sum(map(len, kept)) < count:
        drawn = marginals.draw(max(1, min(CHUNK // n, 8 * count * n)), rng)
        rows = np.arange(len(drawn))
        pivot = rng.choice(n, size=len(drawn), p=pivots)
        drawn[rows, pivot] = 0.0
        drawn[rows, pivot] = missing = total - drawn.sum(axis=1)
        is_kept = (missing >= marginals.low[pivot]) & (missing <= marginals.high[pivot])
        if must_be_largest:
            is_kept &= missing >= drawn.max(axis=1)
        for node in np.flatnonzero(pivots):
            mine = np.flatnonzero(is_kept & (pivot == node))
            log_h = _log_density(marginals.concentration[node] - 1.0, missing[mine], marginals.tilt)
            log_ratio = log_h - marginals.peaks[node] - tops[node]
            is_kept[mine] = np.log(rng.random(mine.size)) <= log_ratio
        kept.append(drawn[is_kept])
    return np.concatenate(kept)[:count]


def _pivots(marginals: _Marginals, total: float) -> tuple[FloatArray, FloatArray, bool]:
    """Returns each node's probability to be the pivot, the log of its max h, and whether the pivot
    must be largest. The widest node is the pivot, or a mixture of all if that keeps more draws."""
    mass, _ = marginals.mass_and_mean()
    floor = np.maximum(marginals.low, total / marginals.low.size)
    tops, tops_above = (_log_top(marginals, start) for start in (marginals.low, floor))
    with np.errstate(over="ignore", divide="ignore"):
        widths, widths_above = mass / np.exp(tops), mass / np.exp(tops_above)
        widest = int(np.argmax(widths))
        mixed = 1.0 / widths_above
    if widths[widest] * mixed.sum() >= 1.0:
        return np.eye(mass.size)[widest], tops, False
    return mixed / mixed.sum(), tops_above, True


def _log_top(marginals: _Marginals, start: FloatArray) -> FloatArray:
    """Returns the log of max h on [start, high]; -inf where this range is empty."""
    rise = marginals.concentration - 1.0
    inner = rise / marginals.tilt if marginals.tilt > 0.0 else marginals.high
    candidates = np.stack([start, np.clip(inner, start, marginals.high), marginals.high])
    logs = _log_density(rise, candidates, marginals.tilt)
    tops = logs.max(axis=0) - marginals.peaks
    return np.where(start < marginals.high, tops, -np.inf)
