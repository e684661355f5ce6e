"""What a prompt token adds is learned from steps with prompts, by the rows beside them."""

import random

import pytest

from inference_api.core.prompt_costs import PromptCosts


def test_nothing_is_known_before_the_first_prompt() -> None:
    assert PromptCosts().token_s(4) is None
    assert PromptCosts().points() == []


def test_each_number_of_rows_has_its_own_and_unseen_ones_that_of_all() -> None:
    costs = PromptCosts()
    for tokens in (8, 16, 32, 8):
        costs.learn(0, tokens, 0.1 * tokens)
        costs.learn(5, tokens, 0.3 * tokens)
    assert costs.token_s(0) == pytest.approx(0.1)
    assert costs.token_s(7) == pytest.approx(0.3)
    assert costs.token_s(30) == pytest.approx(0.2, rel=0.01)
    assert [point.rows for point in costs.points()] == [0.0, 5.0]


def test_what_was_is_forgotten() -> None:
    costs = PromptCosts()
    for share in [0.1] * 300 + [0.2] * 300:
        costs.learn(1, 16, share * 16)
    assert costs.token_s(1) == pytest.approx(0.2, rel=0.01)


def test_step_that_was_held_up_counts_as_one_that_took_three_times_as_long() -> None:
    costs = PromptCosts()
    for seconds in [1.0] * 9 + [500.0]:
        costs.learn(1, 10, seconds)
    assert 0.1 < (costs.token_s(1) or 0.0) < 0.13


def test_tokens_that_cost_nothing_are_not_less_than_free() -> None:
    costs = PromptCosts()
    for _ in range(5):
        costs.learn(1, 8, -0.5)
    assert costs.token_s(1) == 0.0
    costs.learn(1, 64, 64.0)
    assert (costs.token_s(1) or 0.0) > 0.5


def test_error_is_how_far_it_is_off() -> None:
    draws = random.Random(1)
    misses = []
    for _ in range(200):
        costs = PromptCosts()
        for _ in range(200):
            tokens = draws.randint(8, 64)
            costs.learn(2, tokens, 0.1 * tokens + draws.gauss(0.0, 0.5))
        (point,) = costs.points()
        misses.append((point.seconds - 0.1) / point.error_s)
    assert 0.3 < sum(miss * miss for miss in misses) / len(misses) < 1.3


def test_one_prompt_says_its_tokens_within_a_tenth() -> None:
    costs = PromptCosts()
    costs.learn(0, 64, 6.4)
    (point,) = costs.points()
    assert point == pytest.approx((0.0, 0.1, 0.01))
