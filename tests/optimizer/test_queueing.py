"""The closed forms against the chain itself, solved state by state."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.numerics import FloatArray
from optimizer.model import queueing
from optimizer.model.latency import IterationModel
from optimizer.model.queueing import MAX_BATCH, Replica
from tests.optimizer.support import random_replicas, replica


def chain(one: Replica, rate: float) -> FloatArray:
    """Steady state of every state 0..K, from the generator matrix: no product form assumed."""
    batch, queue = int(one.max_batch[0]), int(one.max_queue[0])
    size = batch + queue + 1
    generator = np.zeros((size, size))
    for n in range(size - 1):
        busy = min(n + 1, batch)
        generator[n, n + 1] = rate
        generator[n + 1, n] = busy / float(one.model.service_ms(float(busy))[0])
    generator -= np.diag(generator.sum(axis=1))
    equations = generator.T.copy()
    equations[-1] = 1  # one balance equation is redundant; the probabilities sum to 1
    right = np.zeros(size)
    right[-1] = 1
    solution: FloatArray = np.linalg.solve(equations, right).astype(np.float64)
    return solution


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("load", [0.05, 0.5, 0.9, 0.999, 1.0, 1.1, 4.0])
def test_measures_are_those_of_the_chain_solved_as_linear_equations(seed: int, load: float) -> None:
    one = random_replicas(1, seed, max_batch=12)
    rate = load * one.max_rate_per_ms()
    p = chain(one, float(rate[0]))
    batch = int(one.max_batch[0])
    states = np.arange(p.size)
    throughput = float(rate[0]) * (1 - p[-1])
    in_service = float(np.minimum(states, batch) @ p)
    waiting = float(np.maximum(states - batch, 0) @ p)
    found = one.analyze(rate)
    assert found.throughput_per_ms[0] == pytest.approx(throughput, rel=1e-9)
    assert found.loss[0] == pytest.approx(p[-1], rel=1e-6, abs=1e-13)
    assert found.in_service[0] == pytest.approx(in_service, rel=1e-9)
    assert found.service_ms[0] == pytest.approx(in_service / throughput, rel=1e-9)
    assert found.wait_ms[0] == pytest.approx(
        waiting / throughput, rel=1e-6, abs=1e-10 * in_service / throughput
    )
    # The concurrency an admitted request meets is the n at which service(n) is the mean service.
    met = float(one.model.service_ms(found.concurrency)[0])
    assert met == pytest.approx(in_service / throughput, rel=1e-9)


@pytest.mark.parametrize("load", [0.05, 0.6, 0.97, 0.999])
def test_three_ways_to_sum_the_states_below_the_batch_agree(load: float) -> None:
    """The recursion, the incomplete beta function and the plain sum of logarithms."""
    rng = np.random.default_rng(4)
    replicas = replace(random_replicas(60, seed=5), max_batch=rng.integers(600, 3000, 60))
    rate = load * replicas.max_rate_per_ms()
    with np.errstate(over="ignore"):  # to infinity, where the states above have no weight
        stepped = queueing._step_through_states(replicas, rate)
    closed = queueing._by_incomplete_beta(replicas, rate)
    one_by_one = [
        queueing._sum_over_states(replicas.take(np.array([i])), float(rate[i])) for i in range(60)
    ]
    for which in (0, 1):
        summed = np.array([found[which] for found in one_by_one])
        np.testing.assert_allclose(stepped[which], summed, rtol=1e-8)
        np.testing.assert_allclose(closed[which], summed, rtol=1e-7)


def test_overload_continues_what_holds_below_it() -> None:
    replicas = random_replicas(50, seed=6)
    top = replicas.max_rate_per_ms()
    just_below, just_above = (
        replicas.analyze(top * (1 - 1e-9)),
        replicas.analyze(top * (1 + 1e-9)),
    )
    np.testing.assert_allclose(just_below.ttft_ms, just_above.ttft_ms, rtol=1e-5)
    np.testing.assert_allclose(just_below.loss, just_above.loss, rtol=1e-5)


SPEEDS = st.fixed_dictionaries({n: st.floats(0, 1e9) for n in ("alpha", "beta", "gamma", "delta")})
SHAPES = st.fixed_dictionaries(
    {
        "in_tokens": st.integers(0, 10**6),
        "out_tokens": st.integers(1, 10**6),
        "batch": st.integers(1, 2000),
        "queue": st.integers(1, 10**9),
    }
)


@given(SPEEDS, SHAPES, st.floats(1e-12, 1e12))
def test_extremes_give_finite_ordered_numbers(
    speed: dict[str, Any], requests: dict[str, Any], rate: float
) -> None:
    one = replica(**speed, **requests)
    if not one.is_valid()[0]:
        return
    found = one.analyze(np.array([rate]))
    for values in (found.throughput_per_ms, found.itl_ms, found.ttft_ms):
        assert np.isfinite(values[0])
        assert values[0] >= 0
    assert 0 <= found.loss[0] <= 1
    assert 0 <= found.utilization[0] <= 1
    assert found.throughput_per_ms[0] <= rate * (1 + 1e-9)
    assert 1 <= found.concurrency[0] <= requests["batch"]


def test_latencies_without_slope_are_flat_and_finite() -> None:
    """beta = delta = 0 divides by zero in the reference."""
    found = replica(beta=0, delta=0).analyze(np.array([0.002]))
    assert found.itl_ms[0] == 10
    assert found.ttft_ms[0] - found.wait_ms[0] == pytest.approx(20)


def test_no_input_tokens_mean_no_prefill_anywhere() -> None:
    """The reference subtracts gamma all the same and reports too low an ITL."""
    with_gamma = replica(gamma=200, in_tokens=0).analyze(np.array([0.002]))
    without = replica(gamma=0, in_tokens=0).analyze(np.array([0.002]))
    assert with_gamma.itl_ms[0] == without.itl_ms[0] > 10.3
    assert with_gamma.ttft_ms[0] == with_gamma.wait_ms[0]


def test_largest_batch_is_answered() -> None:
    one = replica(out_tokens=1, batch=MAX_BATCH, queue=10 * MAX_BATCH)
    found = one.analyze(0.999 * one.max_rate_per_ms())
    assert np.isfinite(found.ttft_ms[0])


def test_iteration_model_takes_the_least_chunks_that_fit_the_token_budget() -> None:
    def chunks_by_search(n: int, i: int, m: int) -> int:
        k = 1
        while ((k + m) * (8192 - i / k)) // (i + m) < n:
            k += 1
        return k

    rng = np.random.default_rng(3)
    for _ in range(300):
        i, m, n = (int(rng.integers(1, 20_000)), int(rng.integers(1, 3000)),
                   int(rng.integers(1, 600)))  # fmt: skip
        model = IterationModel(*(np.array([float(v)]) for v in (10, 0.05, 0.001, i, m)))
        assert int(model._chunks(float(n))[0]) == chunks_by_search(n, i, m)
