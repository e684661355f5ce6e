"""The highest arrival rate at which one replica still meets its targets, for many pairs at once.

Units: milliseconds and requests per millisecond. Pure: any thread.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.model.latency import BoolArray, FloatArray, IntArray
from optimizer.model.queueing import Replica, analyze
from optimizer.model.roots import find_roots

LOWEST_RATE = 0.001  # of mu(1): the rate at which a replica counts as idle
HIGHEST_RATE = 0.999  # of mu(N): beyond it the queue grows without bound
TPS_MARGIN = 0.9  # of the highest rate: what a throughput target may load a replica to


@dataclass(frozen=True, slots=True)
class Targets:
    """Service levels per pair; 0 means none."""

    ttft_ms: FloatArray
    itl_ms: FloatArray
    tps: FloatArray  # tokens per second


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer, per pair. Rates of an infeasible pair are 0."""

    feasible: BoolArray
    rate_per_ms: FloatArray  # arrival rate at which the tightest target is met exactly
    throughput_per_ms: FloatArray  # what leaves at that rate: the `rateStar` of the reference
    rate_for_ttft: FloatArray
    rate_for_itl: FloatArray
    rate_for_tps: FloatArray
    best_ttft_ms: FloatArray  # latencies of an idle replica: the lower bounds of any target
    best_itl_ms: FloatArray


def rate_range(replica: Replica) -> tuple[FloatArray, FloatArray]:
    """Arrival rates between which targets are searched: from idle to just below saturation."""
    return (
        LOWEST_RATE / replica.model.service_ms(1.0),
        HIGHEST_RATE * replica.max_rate_per_ms(),
    )


def size(replica: Replica, targets: Targets) -> Sizing:
    """The highest rate with TTFT <= and ITL <= their targets, both increasing in the rate.

    A target that is met just below saturation bounds nothing; one that is missed by an idle
    replica cannot be met at all. A throughput target bounds the load to 0.9 of the highest rate.
    """
    lowest, highest = rate_range(replica)
    idle, loaded = analyze(replica, lowest), analyze(replica, highest)
    search = _TargetSearch(replica, targets, lowest, highest)
    for_ttft = search.bound(idle.latency.ttft_ms, loaded.latency.ttft_ms, _TTFT)
    for_itl = search.bound(idle.latency.itl_ms, loaded.latency.itl_ms, _ITL)
    search.solve()
    for_tps = np.where(targets.tps > 0, TPS_MARGIN * highest, highest)
    rate = np.minimum(np.minimum(for_ttft, for_itl), for_tps)
    feasible = rate > 0
    at_rate = analyze(replica, np.where(feasible, rate, highest))
    return Sizing(
        feasible=feasible,
        rate_per_ms=rate,
        throughput_per_ms=np.where(feasible, at_rate.throughput_per_ms, 0.0),
        rate_for_ttft=for_ttft,
        rate_for_itl=for_itl,
        rate_for_tps=for_tps,
        best_ttft_ms=idle.latency.ttft_ms,
        best_itl_ms=idle.latency.itl_ms,
    )


_TTFT, _ITL = 0, 1


class _TargetSearch:
    """Collects the (pair, target) problems whose root lies inside the range and solves them
    in one batch. Lives for one call of `size`."""

    def __init__(
        self, replica: Replica, targets: Targets, lowest: FloatArray, highest: FloatArray
    ) -> None:
        self._replica = replica
        self._targets = (targets.ttft_ms, targets.itl_ms)
        self._lowest, self._highest = lowest, highest
        self._problems: list[tuple[int, IntArray, FloatArray]] = []

    def bound(self, idle_ms: FloatArray, loaded_ms: FloatArray, metric: int) -> FloatArray:
        """The rate for one metric where an end of the range decides; `solve` fills in the rest."""
        target_ms = self._targets[metric]
        rate = np.where((target_ms == 0) | (loaded_ms <= target_ms), self._highest, 0.0)
        inside = (rate == 0) & (idle_ms <= target_ms)
        self._problems.append((metric, np.flatnonzero(inside), rate))
        return rate

    def solve(self) -> None:
        """Find the roots, in the logarithm of the rate, and write them into the bounds."""
        pairs = np.concatenate([pairs for _, pairs, _ in self._problems])
        if not pairs.size:
            return
        metric = np.repeat(
            [metric for metric, _, _ in self._problems], [p.size for _, p, _ in self._problems]
        )
        target_ms = np.where(
            metric == _TTFT, self._targets[_TTFT][pairs], self._targets[_ITL][pairs]
        )

        def excess(problems: IntArray, log_rate: FloatArray) -> FloatArray:
            """(value - target) / (value + target): finite, and tame where TTFT explodes."""
            latency = analyze(self._replica.take(pairs[problems]), np.exp(log_rate)).latency
            value = np.where(metric[problems] == _TTFT, latency.ttft_ms, latency.itl_ms)
            wanted = target_ms[problems]
            relative: FloatArray = (value - wanted) / (value + wanted)
            return relative

        roots = np.exp(
            find_roots(excess, np.log(self._lowest[pairs]), np.log(self._highest[pairs]))
        )
        start = 0
        for _, inside, rate in self._problems:
            rate[inside] = roots[start : start + inside.size]
            start += inside.size
