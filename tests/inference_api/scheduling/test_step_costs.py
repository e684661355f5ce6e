"""What steps cost is measured once and then learned from every step."""

from collections.abc import Sequence

import pytest

from inference_api._mock_inference_api_server import EchoRunner
from inference_api.engine.runner import RowResult, RowStep
from inference_api.scheduling.step_costs import StepCosts, _sizes


class TimedRunner(EchoRunner):
    """A step takes 3 s, and 0.5 s more for each token after the first four."""

    now_s = 0.0

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        num_tokens = sum(len(each.token_ids) for each in rows)
        assert all(len(each.draws) == len(each.token_ids) for each in rows)
        assert all(each.start + len(each.token_ids) <= self.max_seq_len for each in rows)
        self.now_s += step_s(num_tokens) / 1000
        return super().step(rows)


def step_s(num_tokens: int) -> float:
    return 3 + 0.5 * max(0, num_tokens - 4)


def test_measured_costs_are_those_of_the_runner_at_every_size() -> None:
    runner = TimedRunner(max_rows=4, max_seq_len=100)
    costs = StepCosts.measured(runner, 36, clock=lambda: runner.now_s)
    for num_tokens in range(1, 37):
        assert costs.of(num_tokens) * 1000 == pytest.approx(step_s(num_tokens))


def test_rows_of_a_short_context_are_measured_as_far_as_it_goes() -> None:
    runner = TimedRunner(max_rows=1, max_seq_len=6)
    costs = StepCosts.measured(runner, 9, clock=lambda: runner.now_s)
    assert costs.of(9) * 1000 == pytest.approx(step_s(9))


def test_costs_are_never_less_for_more_tokens() -> None:
    costs = StepCosts({1: 5.0, 2: 4.0, 3: 6.0}, 6)
    assert [costs.of(n) for n in range(1, 7)] == [5.0, 5.0, 6.0, 8.0, 10.0, 12.0]


def test_all_steps_getting_slower_changes_all_costs_alike() -> None:
    costs = StepCosts({1: 1.0, 2: 1.2, 3: 1.4}, 8)
    for _ in range(300):
        costs.learn(2, 1.9 * 1.2)
    assert costs.of(2) == pytest.approx(1.9 * 1.2, rel=0.01)
    assert costs.of(8) / costs.of(1) == pytest.approx(2.4, rel=0.05)


def test_one_size_being_dearer_than_measured_is_learned() -> None:
    costs = StepCosts({1: 1.0, 2: 1.0, 3: 1.0}, 8)
    for _ in range(500):
        costs.learn(1, 1.0)
        costs.learn(5, 1.5)
    assert costs.of(5) / costs.of(1) == pytest.approx(1.5, rel=0.1)


def test_what_was_learned_of_a_size_is_forgotten() -> None:
    costs = StepCosts({1: 1.0, 2: 1.0, 3: 1.0}, 8)
    for _ in range(200):
        costs.learn(1, 1.0)
        costs.learn(5, 1.9)
    for _ in range(3000):
        costs.learn(1, 1.0)
    assert costs.of(5) / costs.of(1) == pytest.approx(1.0, rel=0.1)


def test_step_that_was_held_up_says_little() -> None:
    costs = StepCosts({1: 1.0, 2: 1.2}, 8)
    for _ in range(100):
        costs.learn(1, 1.0)
    costs.learn(2, 500.0)
    assert costs.of(2) / costs.of(1) == pytest.approx(1.2)
    costs.learn(2, 0.0)
    costs.learn(1000, 1.0)
    assert costs.of(1) < 1.2


@pytest.mark.parametrize("max_tokens", [1, 2, 8, 9, 36, 288, 8448])
def test_sizes_are_few_and_reach_the_largest(max_tokens: int) -> None:
    sizes = _sizes(max_tokens)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, max_tokens)
    assert len(sizes) <= 50
