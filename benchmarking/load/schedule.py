"""When the requests of an open loop are due: fixed before the first is sent, seeded. Pure."""

from itertools import accumulate
from random import Random

from benchmarking.records import Distribution


def due_times_s(count: int, qps: float, distribution: Distribution, rng: Random) -> list[float]:
    """Seconds after the start; the first is due at 0, the others after waits of mean 1/qps.

    constant: 1/qps; uniform: U(0, 2/qps); exponential: Exp(mean 1/qps), which makes arrivals a
    Poisson process.
    """
    waits_s = (_wait_s(qps, distribution, rng) for _ in range(count - 1))
    return list(accumulate(waits_s, initial=0.0))


def _wait_s(qps: float, distribution: Distribution, rng: Random) -> float:
    if distribution == "uniform":
        return rng.uniform(0, 2 / qps)
    return rng.expovariate(qps) if distribution == "exponential" else 1 / qps
