"""Requests that come at once are handled at the same time, each the slower for it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.candidates.curves import step_curve
from optimizer.model.curve_chain import CurveReplica
from optimizer.model.curve_rates import Shape
from optimizer.simulation.estimate import estimate, measured, run, waits_ms
from optimizer.simulation.server import Server
from optimizer.simulation.traffic import Requests, Traffic
from optimizer.spec import ServiceCurve
from tests.optimizer.curves import MEASURED, curve


@pytest.mark.parametrize(
    ("arrivals_ms", "expected_ms"),
    [
        ([0.0, 2.0, 4.0], [0.0, 0.0, 0.0]),
        ([0.0, 0.0], [2.0, 2.0]),
        ([5.0, 5.0, 5.0, 5.0], [6.0, 6.0, 6.0, 6.0]),
        # Half of the first is done when the second comes; of that one, when the first is done.
        ([0.0, 1.0], [1.0, 1.0]),
        ([0.0, 1.0, 3.0], [1.0, 2.0, 1.0]),
        ([], []),
    ],
)
def test_each_gets_an_equal_part(arrivals_ms: list[float], expected_ms: list[float]) -> None:
    assert waits_ms(np.array(arrivals_ms), 2.0).tolist() == pytest.approx(expected_ms)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50).map(sorted), st.floats(0, 50))
def test_they_are_done_in_order_and_no_later_than_one_after_the_other(
    arrivals_ms: list[float], handling_ms: float
) -> None:
    come = np.array(arrivals_ms)
    done = come + handling_ms + waits_ms(come, handling_ms)
    assert (np.diff(done) >= -1e-6).all()
    free_ms = 0.0
    for at_ms in arrivals_ms:
        free_ms = max(free_ms, at_ms) + handling_ms
    assert done[-1] == pytest.approx(free_ms)


def test_a_simulated_first_token_waits_for_it() -> None:
    steps = curve((1, 10.0), (2, 12.0), token_ms=1.0)
    both = Requests(np.zeros(2), np.array([5, 5]), np.array([3, 3]), np.zeros(2, dtype=np.int64))
    servers = (Server(each, 2, 9) for each in (steps, replace(steps, handling_ms=4.0)))
    at_once, handled = (measured(each, both, run(each, both), 0) for each in servers)
    assert handled.ttft.value == pytest.approx(at_once.ttft.value + 4.0)
    assert handled.itl.value == pytest.approx(at_once.itl.value)


def test_the_chain_adds_the_mean_wait_of_the_rate() -> None:
    steps = step_curve(ServiceCurve.model_validate({**MEASURED, "handlingMs": 6.0}))
    chain = CurveReplica(steps, Shape(64, 96), 1.0, 32, 320)
    rate = 0.6 * chain.max_rate_per_ms
    bare = CurveReplica(replace(steps, handling_ms=0.0), Shape(64, 96), 1.0, 32, 320)
    added_ms = chain.solve(rate).ttft_ms - bare.solve(rate).ttft_ms
    assert added_ms == pytest.approx(6.0 * 6.0 * rate / (1 - 6.0 * rate))
    seen = estimate(Server(steps, 32, 320), Traffic(rate, 64, 96), 20_000, 1)
    assert chain.solve(rate).ttft_ms == pytest.approx(seen.ttft.value, rel=0.05)
    assert chain.doubts(rate) == bare.doubts(rate)
    assert any("handle requests takes 120%" in each for each in chain.doubts(0.2))
    assert np.isfinite(chain.solve(1.0).ttft_ms)  # where handling alone would take all the time
