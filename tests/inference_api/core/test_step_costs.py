"""What steps cost is measured once and then learned from every step."""

import random
from collections.abc import Callable, Sequence

import pytest

from inference_api._mock_inference_api_server import EchoRunner
from inference_api.core.step_costs import (
    MEASURING_S,
    PROMPT_TOKENS,
    PUBLISH_PERIOD_S,
    Contents,
    StepCosts,
    _sizes,
)
from inference_api.runner import RowResult, RowStep


class TimedRunner(EchoRunner):
    """A step takes 3 s, and 0.5 s more for each token after the first four."""

    now_s = 0.0

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        num_tokens = sum(len(each.token_ids) for each in rows)
        assert all(len(each.draws) == len(each.token_ids) for each in rows)
        assert all(each.start + len(each.token_ids) <= self.max_seq_len for each in rows)
        self.now_s += step_s(num_tokens) / 1000
        return super().step(rows)


class HeldUpRunner(TimedRunner):
    """Steps of six tokens happen to be held up."""

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        if sum(len(each.token_ids) for each in rows) == 6:
            self.now_s += 0.010
        return super().step(rows)


class SlowRunner(TimedRunner):
    """Of a large model: all sizes take longer than there is time for."""

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        num_tokens = sum(len(each.token_ids) for each in rows)
        self.now_s += slow_step_s(num_tokens)
        return super().step(rows)


class PromptRunner(TimedRunner):
    """The same of tokens that draw nothing."""

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        self.now_s += step_s(sum(len(each.token_ids) for each in rows)) / 1000
        return EchoRunner.step(self, rows)


def step_s(num_tokens: int) -> float:
    return 3 + 0.5 * max(0, num_tokens - 4)


def measured(runner: TimedRunner, max_tokens: int) -> StepCosts:
    costs = StepCosts({}, max_tokens)
    costs.measure(runner, clock=lambda: runner.now_s)
    return costs


def slow_step_s(num_tokens: int) -> float:
    return 0.25 + 0.05 * max(0, num_tokens - 8)


def test_measured_costs_are_those_of_the_runner_at_every_size() -> None:
    runner = TimedRunner(max_rows=4, max_seq_len=100)
    costs = measured(runner, 36)
    for num_tokens in range(1, 37):
        assert costs.step_s(num_tokens) * 1000 == pytest.approx(step_s(num_tokens))


def test_size_that_was_held_up_while_measured_makes_no_larger_one_look_free() -> None:
    runner = HeldUpRunner(max_rows=4, max_seq_len=100)
    costs = measured(runner, 36)
    for num_tokens in (5, 7, 8, 12):
        assert costs.step_s(num_tokens) * 1000 == pytest.approx(step_s(num_tokens))


def test_rows_of_a_short_context_are_measured_as_far_as_it_goes() -> None:
    runner = TimedRunner(max_rows=1, max_seq_len=6)
    costs = measured(runner, 9)
    assert costs.step_s(9) * 1000 == pytest.approx(step_s(9))


def test_costs_are_never_less_for_more_tokens() -> None:
    costs = StepCosts({1: 5.0, 2: 4.0, 3: 6.0}, 6)
    assert [costs.step_s(n) for n in range(1, 7)] == [5.0, 5.0, 6.0, 8.0, 10.0, 12.0]


def test_all_steps_getting_slower_changes_all_costs_alike() -> None:
    costs = StepCosts({1: 1.0, 2: 1.2, 3: 1.4}, 8)
    for _ in range(300):
        costs.learn(2, 1.9 * 1.2)
    assert costs.step_s(2) == pytest.approx(1.9 * 1.2, rel=0.01)
    assert costs.step_s(8) / costs.step_s(1) == pytest.approx(2.4, rel=0.05)


def test_one_size_being_dearer_than_measured_is_learned() -> None:
    costs = StepCosts({1: 1.0, 2: 1.0, 3: 1.0}, 8)
    for _ in range(500):
        costs.learn(1, 1.0)
        costs.learn(5, 1.5)
    assert costs.step_s(5) / costs.step_s(1) == pytest.approx(1.5, rel=0.1)


def test_what_was_learned_of_a_size_is_forgotten() -> None:
    costs = StepCosts({1: 1.0, 2: 1.0, 3: 1.0}, 8)
    for _ in range(200):
        costs.learn(1, 1.0)
        costs.learn(5, 1.9)
    for _ in range(3000):
        costs.learn(1, 1.0)
    assert costs.step_s(5) / costs.step_s(1) == pytest.approx(1.0, rel=0.1)


def test_step_that_was_held_up_says_little() -> None:
    costs = StepCosts({1: 1.0, 2: 1.2}, 8)
    for _ in range(100):
        costs.learn(1, 1.0)
    costs.learn(2, 500.0)
    assert costs.step_s(2) / costs.step_s(1) == pytest.approx(1.2)
    costs.learn(2, 0.0)
    costs.learn(1000, 1.0)
    assert costs.step_s(1) < 1.2


@pytest.mark.parametrize("max_tokens", [1, 2, 8, 9, 36, 288, 8448])
def test_sizes_are_few_and_reach_the_largest(max_tokens: int) -> None:
    sizes = _sizes(max_tokens)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, max_tokens)
    assert len(sizes) <= 50


def decoded(rows: int) -> Contents:
    return Contents(rows, rows, 0)


def taught(costs: StepCosts, seconds: Callable[[Contents], float], times: int = 300) -> StepCosts:
    """Steps of 1 to 8 rows in turn, every other one with prompt tokens."""
    for number in range(times):
        rows = 1 + number % 8
        costs.learn_turn(contents := decoded(rows), seconds(contents), 0.0)
        costs.learn_turn(contents := Contents(rows, rows, 4 + number % 16), seconds(contents), 0.0)
    return costs


def linear_s(contents: Contents) -> float:
    return 2.0 + 0.5 * contents.rows + 0.3 * contents.prompt_tokens


def test_prompts_teach_what_a_token_of_theirs_adds() -> None:
    costs = taught(StepCosts({1: 2.5, 8: 6.0}, 8), linear_s)
    for rows in (1, 3, 8):
        assert costs.prompt_token_s(rows) == pytest.approx(0.3, rel=0.02)
        assert costs.turn_s(rows) == pytest.approx(2.0 + 0.5 * rows, rel=0.02)


def test_where_all_steps_have_prompts_they_tell_the_speed_too() -> None:
    costs = taught(StepCosts({1: 2.5, 8: 6.0}, 8), linear_s)
    for _ in range(300):
        costs.learn_turn(contents := Contents(4, 4, 10), 2 * linear_s(contents), 0.0)
    assert costs.step_s(4) == pytest.approx(2 * 4.0, rel=0.15)
    assert costs.turn_s(4) + 10 * (costs.prompt_token_s(4) or 0) == pytest.approx(14.0, rel=0.01)


def test_sizes_that_were_not_measured_are_by_their_first_steps() -> None:
    """The very first one is slow: weights come from the disk."""
    costs = StepCosts({}, 16)
    costs.learn_turn(decoded(3), 900.0, 0.0)
    taught(costs, linear_s, 100)
    for rows in range(1, 9):
        assert costs.step_s(rows) == pytest.approx(2.0 + 0.5 * rows, rel=0.03)
    assert costs.step_s(16) == pytest.approx(2.0 + 0.5 * 16, rel=0.1)  # as the last two go on
    costs.publish(1.0)
    assert [point.rows for point in costs.speed.decode] == list(range(1, 9))


def test_what_held_a_step_of_the_warm_up_back_does_not_count() -> None:
    costs = StepCosts({}, 4)
    costs.warmed_up({1: 90.0, 2: 1.0, 3: 70.0, 4: 2.0})
    assert [costs.step_s(n) for n in range(1, 5)] == [1.0, 1.0, 2.0, 2.0]


def test_large_sizes_are_known_also_where_there_is_no_time_for_all() -> None:
    runner = SlowRunner(max_rows=32, max_seq_len=101)
    costs = measured(runner, 32)
    assert runner.now_s < MEASURING_S + slow_step_s(16)
    for num_tokens in (1, 8, 12, 16, 24, 32):
        assert costs.step_s(num_tokens) == pytest.approx(slow_step_s(num_tokens), rel=0.1)


def test_prompt_is_timed_at_warm_up() -> None:
    runner = TimedRunner(max_rows=4, max_seq_len=101)
    costs = measured(runner, 8)
    runner = PromptRunner(max_rows=4, max_seq_len=101)
    costs.measure_prompt(runner, clock=lambda: runner.now_s)
    assert costs.prompt_token_s(0) == pytest.approx((0.5 * 60) / PROMPT_TOKENS / 1000)


def test_time_outside_of_steps_is_part_of_turns() -> None:
    costs = StepCosts({1: 1.0, 8: 1.0}, 8)
    assert costs.loop_s(8) == 0.0
    for _ in range(100):
        costs.learn_turn(decoded(1), 1.0, 0.1)
        costs.learn_turn(decoded(8), 1.0, 0.4)
    costs.learn_turn(decoded(8), 1.0, 60.0)  # something took the core
    assert costs.turn_s(1) == pytest.approx(1.1)
    assert costs.loop_s(2) == pytest.approx(0.1)  # none of 2 and 3 was seen
    assert costs.loop_s(8) == pytest.approx(0.4, rel=0.2)
    assert costs.turn_s(8) == pytest.approx(1.4, rel=0.25)


def test_turns_are_as_long_on_average_as_they_were_also_where_some_are_held_up() -> None:
    """One in ten takes eight times as long: that says nothing of its size, but it is there."""
    costs = StepCosts({1: 1.0, 2: 1.0}, 2)
    for number in range(3000):
        costs.learn_turn(decoded(2), 8.0 if number % 10 == 5 else 1.0, 0.0)
    assert costs.step_s(2) < 1.2
    assert costs.turn_s(2) == pytest.approx(1.7, rel=0.05)


def test_turns_that_are_held_up_outside_of_their_steps_count_as_well() -> None:
    """As where another thread has the interpreter for some milliseconds after every tenth."""
    costs = StepCosts({1: 1.0, 2: 1.0}, 2)
    for number in range(3000):
        costs.learn_turn(decoded(2), 1.0, 5.1 if number % 10 == 5 else 0.1)
    assert costs.loop_s(2) < 0.2
    assert costs.turn_s(2) == pytest.approx(1.6, rel=0.05)


def test_a_few_quiet_steps_at_the_end_do_not_make_a_load_look_cheap() -> None:
    costs = StepCosts({1: 0.001, 2: 0.001}, 2)
    for _ in range(5000):
        costs.learn_turn(decoded(2), 0.002, 0.0)
    for _ in range(50):
        costs.learn_turn(decoded(1), 0.001, 0.0)
    costs.publish(5.0)
    assert costs.step_s(1) == pytest.approx(0.001, rel=0.1)
    assert costs.speed.decode[1].seconds == pytest.approx(0.002, rel=0.1)
    assert costs.speed.speed == pytest.approx(0.5, rel=0.1)


def test_what_is_published_is_of_now_and_says_how_fast_that_is() -> None:
    costs = StepCosts({1: 1.0, 2: 2.0, 32: 4.0}, 64, max_rows=4)
    costs.publish(5.0)
    assert (costs.speed.steps, costs.speed.speed, costs.speed.measured_at_s) == (0, 1.0, 5.0)
    for _ in range(200):
        costs.learn_turn(decoded(2), 3.0, 0.0)
    before = costs.speed
    costs.publish(6.0)
    assert before.steps == 0
    assert costs.speed.speed == pytest.approx(1 / 1.5, rel=0.01)
    assert [point.rows for point in costs.speed.decode] == [1, 2, 3, 4]
    assert costs.speed.decode[1].seconds == pytest.approx(3.0, rel=0.01)
    costs.publish(7.0)
    assert costs.speed.measured_at_s == 6.0  # no step since


def test_it_is_published_now_and_then_only() -> None:
    costs = StepCosts({1: 1.0}, 1)
    costs.publish(5.0)
    costs.learn_turn(decoded(1), 1.0, 0.0)
    costs.publish(5.0 + 0.9 * PUBLISH_PERIOD_S)
    assert costs.speed.steps == 0
    costs.publish(5.0 + 1.1 * PUBLISH_PERIOD_S)
    assert costs.speed.steps == 1


def test_errors_are_those_of_the_steps() -> None:
    """Seen often: about as well known as the mean of that many. Never seen: hardly."""
    draws = random.Random(3)
    misses = []
    for _ in range(40):
        costs = StepCosts({1: 1.0, 2: 2.0}, 2)
        for _ in range(400):
            costs.learn_turn(decoded(2), 2.0 * draws.uniform(0.8, 1.2), 0.0)
        costs.publish(1.0)
        unseen, seen = costs.speed.decode
        misses.append((seen.seconds - 2.0) / seen.error_s)
        assert unseen.error_s / unseen.seconds > 2 * seen.error_s / seen.seconds
    mean_square = sum(miss * miss for miss in misses) / len(misses)
    assert 0.4 < mean_square < 1.6
