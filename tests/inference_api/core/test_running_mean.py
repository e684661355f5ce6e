"""Means forget, and say how well they are known."""

import math
import random

import pytest

from inference_api.core.running_mean import RunningMean


def test_the_first_values_count_alike() -> None:
    mean = RunningMean(0.1)
    for value in (1.0, 2.0, 6.0):
        mean.learn(value)
    assert mean.mean == pytest.approx(3.0)
    assert mean.error == pytest.approx(math.sqrt(7.0 / 3))  # variance 7 of three


def test_what_was_is_forgotten() -> None:
    mean = RunningMean(0.1)
    for value in [1.0] * 100 + [5.0] * 100:
        mean.learn(value)
    assert mean.mean == pytest.approx(5.0, rel=0.001)


def test_error_is_how_far_the_mean_is_off() -> None:
    draws = random.Random(5)
    misses = []
    for _ in range(300):
        mean = RunningMean(0.05)
        for _ in range(200):
            mean.learn(draws.gauss(10.0, 2.0))
        misses.append((mean.mean - 10.0) / mean.error)
    assert 0.8 < sum(miss * miss for miss in misses) / len(misses) < 1.3


def test_of_one_value_nothing_is_known() -> None:
    mean = RunningMean(0.1)
    mean.learn(3.0)
    assert (mean.mean, mean.error) == (3.0, math.inf)
