"""The token-level simulation against what can be worked out by hand, and queues that are known."""

from typing import Any

import numpy as np
import pytest

from optimizer.model.step_curve import StepCurve
from optimizer.simulation.estimate import estimate
from optimizer.simulation.server import PRIORITY_MS, Served, Server, serve
from optimizer.simulation.traffic import Requests, Traffic, draw
from tests.optimizer.curves import curve

STEPS = curve((1, 10.0), (2, 12.0), token_ms=1.0)


def served(
    of: StepCurve, arrivals_ms: list[float], rows: int = 2, queue: int = 9, **given: Any
) -> Served:
    """Requests of 5 prompt and 3 output tokens, unless others are given."""
    count = len(arrivals_ms)
    requests = Requests(
        np.array(arrivals_ms, dtype=np.float64),
        np.array(given.get("prompts", [5] * count)),
        np.array(given.get("answers", [3] * count)),
        np.array(given.get("priorities", [0] * count)),
    )
    return serve(Server(of, rows, queue), requests)


def test_request_alone_takes_a_step_with_its_prompt_and_one_for_each_further_token() -> None:
    alone = served(STEPS, [100.0])
    assert alone.first_token_ms.tolist() == [114.0]  # with the fifth token its row decodes
    assert alone.end_ms.tolist() == [134.0]


def test_request_that_comes_during_a_step_waits_for_its_end() -> None:
    both = served(STEPS, [0.0, 15.0])
    # Steps end at 14 and 24; then both rows and the second prompt take 16 ms, up to 40.
    assert both.admitted_ms.tolist() == [0.0, 24.0]
    assert both.first_token_ms.tolist() == [14.0, 40.0]
    assert both.end_ms.tolist() == [40.0, 60.0]


def test_prompts_that_fit_share_a_step_and_long_ones_take_several() -> None:
    assert served(STEPS, [0.0, 0.0]).first_token_ms.tolist() == [20.0, 20.0]
    cut = curve((1, 10.0), (2, 12.0), token_ms=1.0, chunk=3)
    # 4 tokens of each: 3; then 1 and 2, and the first decodes; then 2, and both do.
    assert served(cut, [0.0, 0.0]).first_token_ms.tolist() == [26.0, 40.0]


def test_budget_leaves_prompts_what_rows_that_decode_do_not_take() -> None:
    budget = curve((1, 10.0), (2, 12.0), token_ms=1.0, budget=9)
    prompts = [1, 21]
    late = served(budget, [0.0, 5.0], prompts=prompts, answers=[9, 2])
    # 20 tokens beside one row: 8, 8 and 4, of which the last step has two rows.
    assert late.admitted_ms[1] == 10.0
    assert late.first_token_ms[1] == pytest.approx(10 + 18 + 18 + 16)


def test_who_finds_rows_and_queue_full_is_lost() -> None:
    crowd = served(STEPS, [0.0, 0.0, 1.0, 1.0], rows=1, queue=1)
    assert np.isnan(crowd.end_ms).tolist() == [False, False, True, True]


def test_higher_priority_leaves_the_queue_earlier_and_waiting_makes_up_for_it() -> None:
    three = served(STEPS, [0.0, 1.0, 2.0], rows=1, priorities=[0, 1, 0])
    assert three.admitted_ms[2] < three.admitted_ms[1]
    late = [0.0, 1.0, 2.0 + PRIORITY_MS]
    assert (np.argsort(served(STEPS, late, rows=1, priorities=[0, 1, 0]).end_ms) == [0, 1, 2]).all()


def test_steps_taken_at_once_are_those_taken_one_by_one() -> None:
    """Requests that come too late for a row change nothing, though they end no leap early."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(20.0, 300)).tolist()
    leaping = served(STEPS, arrivals, rows=3)
    walking = served(curve((1, 10.0), (2, 12.0), token_ms=1.0, chunk=10**6), arrivals, rows=3)
    np.testing.assert_array_equal(leaping.end_ms, walking.end_ms)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_single_row_is_the_queue_of_pollaczek_and_khinchine(spread: float) -> None:
    service_ms, load = 200.0, 0.7
    one = Server(curve((1, 1.0)), 1, 10**6)
    traffic = Traffic(load / service_ms, 1, 200, out_scv=spread)
    seen = estimate(one, traffic, 200_000, seed=5)
    wait_ms = load * service_ms * (1 + spread) / (2 * (1 - load))
    assert seen.wait.value == pytest.approx(wait_ms, abs=2 * seen.wait.half_width)
    assert seen.wait.half_width < 0.05 * wait_ms
    assert seen.itl.value == pytest.approx(1.0)
    assert seen.utilization == pytest.approx(load, rel=0.02)


def test_lengths_and_gaps_have_the_mean_and_spread_that_were_asked_for() -> None:
    wanted = Traffic(0.5, 37.5, 12, arrival_scv=4.0, in_scv=0.5, out_scv=1.0, shares=(0.25, 0.75))
    drawn = draw(wanted, 200_000, seed=1)
    gaps = np.diff(drawn.arrival_ms, prepend=0.0)
    for values, mean, scv in (
        (gaps, 2.0, 4.0), (drawn.in_tokens, 37.5, 0.5), (drawn.out_tokens, 12.0, 1.0),
    ):  # fmt: skip
        assert values.mean() == pytest.approx(mean, rel=0.01)
        assert values.var() / values.mean() ** 2 == pytest.approx(scv, rel=0.03)
    assert drawn.out_tokens.min() >= 1
    assert drawn.priority.mean() == pytest.approx(0.75, abs=0.01)


def test_same_seed_gives_the_same_and_another_rate_moves_arrivals_only() -> None:
    slow, fast = (draw(Traffic(rate, 10, 10), 100, seed=2) for rate in (1.0, 2.0))
    np.testing.assert_allclose(slow.arrival_ms, 2 * fast.arrival_ms)
    np.testing.assert_array_equal(slow.out_tokens, fast.out_tokens)
