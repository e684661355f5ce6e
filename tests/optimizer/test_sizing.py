"""Maximum rates: right at the bound, infeasible only where an idle replica misses it."""

from collections.abc import Iterator

import numpy as np
import pytest

from common.numerics import FloatArray
from optimizer.model.sizing import HIGHEST_RATE, TPS_MARGIN, rate_range, size
from tests.optimizer.support import random_replicas, replica


def targets(ttft: float = 0, itl: float = 0, tps: float = 0) -> Iterator[FloatArray]:
    return (np.array([float(target)]) for target in (ttft, itl, tps))


@pytest.mark.parametrize("seed", range(5))
def test_at_the_rate_the_tightest_target_is_met_exactly(seed: int) -> None:
    replicas = random_replicas(200, seed)
    lowest, highest = rate_range(replicas)
    idle, loaded = replicas.analyze(lowest), replicas.analyze(highest)
    rng = np.random.default_rng(seed)
    part = rng.uniform(0.05, 0.6, 200)
    ttft_ms = idle.ttft_ms + part * (loaded.ttft_ms - idle.ttft_ms)
    itl_ms = idle.itl_ms + part[::-1] * (loaded.itl_ms - idle.itl_ms)
    found = size(replicas, ttft_ms, itl_ms, np.zeros(200))
    at_rate = replicas.analyze(found.rate_per_ms)
    assert found.feasible.all()
    slack = np.maximum(at_rate.ttft_ms / ttft_ms, at_rate.itl_ms / itl_ms)
    np.testing.assert_allclose(slack, 1, rtol=1e-6)


def test_constant_itl_below_its_target_bounds_nothing() -> None:
    """beta = 0: the reference declares it infeasible."""
    found = size(replica(beta=0), *targets(itl=14))
    assert found.feasible[0]
    assert found.rate_for_itl[0] == pytest.approx(HIGHEST_RATE * replica(beta=0).max_rate_per_ms())


def test_constant_itl_above_its_target_is_infeasible() -> None:
    """Batch 1: the reference offers it."""
    found = size(replica(batch=1, queue=10), *targets(itl=9))
    assert not found.feasible[0]
    assert found.best_itl_ms[0] == pytest.approx(10.3)


def test_target_of_exactly_the_idle_latency_is_feasible() -> None:
    tested = replica()
    idle = float(tested.analyze(rate_range(tested)[0]).itl_ms[0])
    assert size(tested, *targets(itl=idle)).feasible[0]
    assert not size(tested, *targets(itl=idle * (1 - 1e-9))).feasible[0]


def test_without_targets_the_rate_is_just_below_saturation() -> None:
    tested = replica()
    assert size(tested, *targets()).rate_per_ms == pytest.approx(
        HIGHEST_RATE * tested.max_rate_per_ms()
    )


def test_throughput_target_keeps_a_margin_whatever_its_value() -> None:
    tested = replica()
    highest = rate_range(tested)[1]
    assert size(tested, *targets(tps=1)).rate_per_ms == pytest.approx(TPS_MARGIN * highest)
    assert size(tested, *targets(tps=1e9)).rate_per_ms == pytest.approx(TPS_MARGIN * highest)
