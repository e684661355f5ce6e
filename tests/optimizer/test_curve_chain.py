"""The chain over measured step times: exact cases, limits, and the simulation as its judge."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.benches.truth.simulator import compare, random_systems
from optimizer.model.curve_chain import CurveReplica, CurveReplicas
from optimizer.model.curve_rates import Shape, all_rates
from optimizer.model.sizing import size
from optimizer.simulation.server import Server, serve
from optimizer.simulation.traffic import Requests
from tests.optimizer.curves import curve, points
from tests.optimizer.support import replica as line_replica

BENT = curve((1, 0.8), (4, 1.0), (8, 2.2), (32, 8.6), token_ms=0.02)


def test_curve_is_straight_between_points_flat_below_and_goes_on_beyond() -> None:
    measured = points((2, 3.0), (4, 5.0), (8, 6.0))
    found = measured.at(np.array([0.0, 1.0, 2.0, 3.0, 6.0, 8.0, 12.0]))
    np.testing.assert_allclose(found, [3.0, 3.0, 3.0, 4.0, 5.5, 6.0, 7.0])


def test_rate_of_one_request_is_that_of_its_steps() -> None:
    rates, _ = all_rates(BENT, Shape(64, 96), 3)
    assert 1 / rates.rate_per_ms[0] == pytest.approx(63 * 0.02 + 96 * 0.8)
    assert rates.first_token_ms[0] == pytest.approx(0.8 + 63 * 0.02)


def test_rates_of_many_states_lie_between_those_that_are_solved_for() -> None:
    shape = Shape(300, 100)
    many, _ = all_rates(BENT, shape, 20_000)
    for rows in (700, 5001, 20_000):
        alone = all_rates(BENT, shape, rows)[1].rate_per_ms[0]
        assert many.rate_per_ms[rows - 1] == pytest.approx(alone, rel=1e-2)


@pytest.mark.parametrize("chunk", [1e6, 50.0, 25.0])
def test_saturated_rate_is_what_a_crowd_gets_from_the_simulated_server(chunk: float) -> None:
    steps = curve((1, 0.8), (4, 1.0), (8, 2.2), (32, 8.6), token_ms=0.02, chunk=chunk)
    count = 4000
    crowd = Requests(
        np.zeros(count), np.full(count, 64), np.random.default_rng(1).geometric(1 / 96, count),
        np.zeros(count, dtype=np.int64),
    )  # fmt: skip
    last_ms = serve(Server(steps, 12, count), crowd).end_ms
    per_ms = (count - 400) / (np.sort(last_ms)[-200] - np.sort(last_ms)[200])
    rate = all_rates(steps, Shape(64, crowd.out_tokens.mean()), 12)[1].rate_per_ms[0]
    assert rate == pytest.approx(per_ms, rel=0.02)


def test_chain_of_flat_steps_without_prompts_is_the_reference_chain() -> None:
    """Constant steps: M/M/N, which alpha alone gives as well; only residual steps are added."""
    chain = CurveReplica(curve((1, 10.0)), Shape(1, 4000), 1.0, 8, 80)
    lines = line_replica(
        alpha=10, beta=0, gamma=10, delta=0, in_tokens=1, out_tokens=4000, batch=8, queue=80
    )
    for load in (0.3, 0.7, 0.95):
        rate = load * chain.max_rate_per_ms
        found, known = chain.solve(rate), lines.analyze(np.array([rate]))
        assert found.in_service == pytest.approx(known.in_service[0], rel=1e-3)
        assert found.itl_ms == pytest.approx(10, rel=1e-3)
        queue_ms = float(known.wait_ms[0])
        assert found.wait_ms == pytest.approx(queue_ms, rel=1e-3, abs=10)


def test_chain_is_within_five_percent_of_the_simulation() -> None:
    """Some of the systems of `make bench-simulator`."""
    systems = (one for one in random_systems(3) if not one.replica.doubts(one.rate_per_ms))
    found = [compare(one, 20_000, 1) for one in islice(systems, 12)]
    assert [str(one.system) for one in found if one.is_beyond] == []


def test_overload_continues_what_holds_below_it_and_departs_what_it_can() -> None:
    chain = CurveReplica(BENT, Shape(64, 96), 0.5, 16, 50)
    below, above = (chain.solve(chain.max_rate_per_ms * load) for load in (1 - 1e-6, 1 + 1e-6))
    for name in ("ttft_ms", "itl_ms", "in_service"):
        assert getattr(above, name) == pytest.approx(getattr(below, name), rel=1e-2)
    flooded = chain.solve(1e9 * chain.max_rate_per_ms)
    assert flooded.throughput_per_ms == pytest.approx(chain.max_rate_per_ms, rel=0.01)
    assert flooded.wait_ms == pytest.approx(50 / chain.max_rate_per_ms, rel=0.02)
    assert flooded.loss == pytest.approx(1)


def test_equal_answers_wait_for_half_as_long_as_exponential_ones() -> None:
    shape = Shape(1, 400)
    exponential, equal = (CurveReplica(curve((1, 5.0)), shape, v, 1, 10**6) for v in (1.0, 0.0))
    rate = 0.8 * equal.max_rate_per_ms
    ratio = equal.solve(rate).wait_ms / exponential.solve(rate).wait_ms
    assert ratio == pytest.approx(0.5, abs=0.01)


def test_sizing_finds_the_rate_at_which_the_target_is_met() -> None:
    chain = CurveReplica(BENT, Shape(64, 96), 1.0, 32, 320)
    sizing = size(CurveReplicas([chain]), np.array([50.0]), np.array([0.0]), np.array([0.0]))
    assert chain.solve(float(sizing.rate_for_ttft[0])).ttft_ms == pytest.approx(50, rel=1e-6)
    assert sizing.rate_for_itl[0] == pytest.approx(0.999 * chain.max_rate_per_ms)


def test_time_above_the_measured_rows_is_told() -> None:
    short = curve((1, 1.0), (4, 2.0))
    chain = CurveReplica(short, Shape(16, 64), 1.0, 16, 160)
    assert chain.solve(0.1 * chain.max_rate_per_ms).above_measured < 0.01
    assert chain.solve(0.95 * chain.max_rate_per_ms).above_measured > 0.5


@given(
    first=st.floats(1e-6, 1e6),
    more=st.floats(0, 1e6),
    token=st.floats(1e-6, 1e6),
    shape=st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)),
    sizes=st.tuples(st.integers(1, 200), st.integers(0, 10**9)),
    chunk=st.integers(1, 10**6),
    load=st.floats(1e-9, 1e6),
    spread=st.floats(0, 100),
)
def test_extremes_give_finite_ordered_numbers(
    first: float,
    more: float,
    token: float,
    shape: tuple[int, int],
    sizes: tuple[int, int],
    chunk: int,
    load: float,
    spread: float,
) -> None:
    steps = curve((1, first), (8, first + more), token_ms=token, chunk=chunk)
    one = CurveReplica(steps, Shape(*shape), spread, *sizes)
    found = one.solve(load * one.max_rate_per_ms)
    assert all(np.isfinite(value) and value >= 0 for value in found)
    assert 0 <= found.loss <= 1
    assert found.utilization <= 1
    assert found.throughput_per_ms <= load * one.max_rate_per_ms * (1 + 1e-6)
