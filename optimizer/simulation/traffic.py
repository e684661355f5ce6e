"""Draws random requests: arrivals, lengths and priorities. Seeded."""

from dataclasses import dataclass

import numpy as np

from common.numerics import FloatArray, IntArray

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Traffic:
    """A stream of requests, given by means and squared coefficients of variation (scv).

    Gaps between arrivals and lengths have gamma distributions. `arrival_scv` 1 is Poisson; more is
    burstier. Lengths with scv 0 are constant; with 1 about geometric. `shares` are the shares of
    requests with priorities 0, 1, ....
    """

    rate_per_ms: float
    in_tokens: float
    out_tokens: float  # at least 1
    arrival_scv: float = 1.0
    in_scv: float = 0.0
    out_scv: float = 1.0
    shares: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class Requests:
    """One entry per request, in the order of arrival."""

    arrival_ms: FloatArray
    in_tokens: IntArray
    out_tokens: IntArray
    priority: IntArray


def draw(traffic: Traffic, count: int, seed: int) -> Requests:
    """Returns requests, the same for the same seed; another rate only scales their arrivals."""
    gap_rng, in_rng, out_rng, priority_rng = np.random.default_rng(seed).spawn(4)
    gaps = _gamma(gap_rng, 1.0, traffic.arrival_scv, count)
    gaps /= gaps.mean()  # so that the mean rate is exact
    shares = np.array(traffic.shares) / sum(traffic.shares)
    return Requests(
        arrival_ms=np.cumsum(gaps) / traffic.rate_per_ms,
        in_tokens=_lengths(in_rng, traffic.in_tokens, traffic.in_scv, count),
        out_tokens=_lengths(out_rng, traffic.out_tokens, traffic.out_scv, count),
        priority=priority_rng.choice(shares.size, count, p=shares),
    )


def _gamma(rng: Rng, mean: float, scv: float, count: int) -> FloatArray:
    if scv == 0 or mean == 0:
        return np.full(count, mean)
    return rng.gamma(1 / scv, scv * mean, count)


def _lengths(rng: Rng, mean: float, scv: float, count: int) -> IntArray:
    """Returns whole lengths with this mean and scv, of at least 1, or 0 if the mean is below 1."""
    shortest = min(1.0, mean)
    above = mean - shortest
    scv_above = scv * (mean / above) ** 2 if above > 0 else 0.0
    drawn = shortest + _gamma(rng, above, scv_above, count)
    # Rounded up with the probability of the fraction, which preserves the mean.
    return np.asarray(np.floor(drawn + rng.random(count)), dtype=np.int64)
