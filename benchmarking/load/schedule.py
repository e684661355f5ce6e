"""Draws when the requests of an open loop are due, before the first is sent; seeded. Pure."""

from itertools import accumulate
from random import Random

from benchmarking.records import Distribution

MOST_SPREAD = 4  # largest ratio of a drawn length to the mean, or of the mean to it


def due_times_s(
    count: int, qps: float, distribution: Distribution, rng: Random, scv: float | None = None
) -> list[float]:
    """Seconds after the start; the first is due at 0, the others after waits of mean 1/qps.

    constant: 1/qps; uniform: U(0, 2/qps); exponential: Exp(mean 1/qps), which makes arrivals a
    Poisson process. With `scv` waits have a gamma distribution of that spread: above 1 is burstier.
    """
    if scv is None:
        waits_s = (_wait_s(qps, distribution, rng) for _ in range(count - 1))
    else:
        waits_s = (rng.gammavariate(1 / scv, scv / qps) for _ in range(count - 1))
    return list(accumulate(waits_s, initial=0.0))


def lengths(count: int, mean_tokens: int, scv: float, rng: Random) -> list[int]:
    """Tokens of each request, within a quarter and four times the mean; all alike without `scv`."""
    if scv == 0:
        return [mean_tokens] * count
    drawn = (rng.gammavariate(1 / scv, scv * mean_tokens) for _ in range(count))
    least, most = mean_tokens / MOST_SPREAD, mean_tokens * MOST_SPREAD
    return [round(min(max(tokens, least), most)) for tokens in drawn]


def _wait_s(qps: float, distribution: Distribution, rng: Random) -> float:
    if distribution == "uniform":
        return rng.uniform(0, 2 / qps)
    return rng.expovariate(qps) if distribution == "exponential" else 1 / qps
