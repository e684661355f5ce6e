"""Draws, before a row, when the requests of an open loop are due and lengths of texts. Pure."""

from itertools import accumulate
from random import Random

from benchmarking.records import Distribution

MOST_SPREAD = 4  # largest ratio of a drawn length to the mean, or the other way round


def due_times_s(
    count: int, qps: float, distribution: Distribution, rng: Random, scv: float | None = None
) -> list[float]:
    """Returns due times in seconds from the start. The first is 0; waits have the mean 1/qps.

    Waits are 1/qps (constant), U(0, 2/qps) (uniform), or exponential, which makes arrivals a
    Poisson process. With `scv` waits are gamma distributed; above 1, arrivals are burstier.
    """
    if scv is None:
        waits_s = (_wait_s(qps, distribution, rng) for _ in range(count - 1))
    else:
        waits_s = (rng.gammavariate(1 / scv, scv / qps) for _ in range(count - 1))
    return list(accumulate(waits_s, initial=0.0))


def lengths(count: int, mean_tokens: int, scv: float, rng: Random) -> list[int]:
    """Returns each request's tokens, from a quarter of the mean to four times; equal at `scv` 0."""
    if scv == 0:
        return [mean_tokens] * count
    drawn = (rng.gammavariate(1 / scv, scv * mean_tokens) for _ in range(count))
    least, most = mean_tokens / MOST_SPREAD, mean_tokens * MOST_SPREAD
    return [round(min(max(tokens, least), most)) for tokens in drawn]


def _wait_s(qps: float, distribution: Distribution, rng: Random) -> float:
    if distribution == "uniform":
        return rng.uniform(0, 2 / qps)
    return rng.expovariate(qps) if distribution == "exponential" else 1 / qps
