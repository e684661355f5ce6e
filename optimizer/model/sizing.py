"""The highest arrival rate at which one replica still meets its targets, for many pairs at once.

Units: milliseconds and requests per millisecond. Pure: any thread.
"""

from dataclasses import dataclass

import numpy as np

from common.numerics import BoolArray, FloatArray, IntArray, part_of_scipy
from optimizer.model.curve_chain import CurveReplicas
from optimizer.model.latency import Columns
from optimizer.model.queueing import Replica

LOWEST_RATE = 0.001  # share of mu(1) at which a replica counts as idle
HIGHEST_RATE = 0.999  # share of mu(N); beyond mu(N) the queue grows without bound
TPS_MARGIN = 0.9  # share of the highest rate up to which a throughput target may load a replica
TOLERANCE = 1e-12  # absolute and relative error of the share of the highest rate

Replicas = Replica | CurveReplicas


@dataclass(frozen=True, slots=True)
class Sizing(Columns):
    """The highest rates per pair; 0 for an infeasible pair."""

    rate_per_ms: FloatArray  # arrival rate at which the tightest target is met exactly
    throughput_per_ms: FloatArray  # requests served at that rate: the reference's `rateStar`
    rate_for_ttft: FloatArray
    rate_for_itl: FloatArray
    rate_for_tps: FloatArray
    best_ttft_ms: FloatArray  # latencies of an idle replica: the lower bounds of any target
    best_itl_ms: FloatArray

    @property
    def feasible(self) -> BoolArray:
        """Whether some rate meets all targets, per pair."""
        return self.rate_per_ms > 0


def rate_range(replica: Replicas) -> tuple[FloatArray, FloatArray]:
    """Returns the search's bounds: the arrival rates when idle and near saturation."""
    return LOWEST_RATE / replica.idle_service_ms(), HIGHEST_RATE * replica.max_rate_per_ms()


def size(replica: Replicas, ttft_ms: FloatArray, itl_ms: FloatArray, tps: FloatArray) -> Sizing:
    """Returns the highest rates at which TTFT and ITL meet their targets. Both grow with the rate.

    Targets are per pair, 0 for none; `tps` are tokens per second. A target that is met just below
    saturation is no bound. A target that an idle replica misses cannot be met. A throughput target
    bounds the load to 0.9 of the highest rate.
    """
    lowest, highest = rate_range(replica)
    pairs = np.arange(lowest.size)
    ends = replica.take(np.tile(pairs, 2)).analyze(np.concatenate([lowest, highest]))
    # Each [2, pairs]: TTFT and ITL.
    idle_ms, loaded_ms = np.stack([ends.ttft_ms, ends.itl_ms]).reshape(2, 2, -1).swapaxes(0, 1)
    wanted_ms = np.stack([ttft_ms, itl_ms])
    rates = np.where((wanted_ms == 0) | (loaded_ms <= wanted_ms), highest, 0.0)
    is_between = (rates == 0) & (idle_ms <= wanted_ms)
    if is_between.any():
        rates[is_between] = _rates_at(replica, wanted_ms, is_between)
    for_ttft, for_itl = rates
    for_tps = np.where(tps > 0, TPS_MARGIN * highest, highest)
    rate = np.minimum(np.minimum(for_ttft, for_itl), for_tps)
    at_rate = replica.analyze(np.where(rate > 0, rate, highest))
    return Sizing(
        rate_per_ms=rate,
        throughput_per_ms=np.where(rate > 0, at_rate.throughput_per_ms, 0.0),
        rate_for_ttft=for_ttft,
        rate_for_itl=for_itl,
        rate_for_tps=for_tps,
        best_ttft_ms=idle_ms[0],
        best_itl_ms=idle_ms[1],
    )


def _rates_at(replica: Replicas, wanted_ms: FloatArray, is_between: BoolArray) -> FloatArray:
    """Returns for each True of `is_between` [2, pairs] the rate at which the latency is the target.

    Chandrupatla's method (Advances in Engineering Software 28, 1997) on the share of the highest
    rate: in the rate latencies are smoother than in its logarithm, which takes a third more steps.
    """
    metric, pair = np.nonzero(is_between)
    part, wanted_ms = replica.take(pair), wanted_ms[is_between]
    lowest, highest = rate_range(part)

    def excess(share: FloatArray, problem: IntArray) -> FloatArray:
        """Returns (value - wanted) / (value + wanted), which stays finite where TTFT explodes."""
        found = part.take(problem).analyze(share * highest[problem])
        value_ms = np.where(metric[problem] == 0, found.ttft_ms, found.itl_ms)
        relative: FloatArray = (value_ms - wanted_ms[problem]) / (value_ms + wanted_ms[problem])
        return relative

    bracket = lowest / highest, np.ones(pair.size)
    # `scipy.optimize` does not import this submodule.
    found = part_of_scipy("optimize.elementwise").find_root(
        excess,
        bracket,
        args=(np.arange(pair.size),),
        tolerances={"xatol": TOLERANCE, "xrtol": TOLERANCE, "fatol": 0.0},
    )
    # Not `found.x`: rounding may miss a target that equals the latency at an end.
    (left, right), (at_left, at_right) = found.bracket, found.f_bracket
    rates: FloatArray = highest * np.where(np.abs(at_left) <= np.abs(at_right), left, right)
    return rates
