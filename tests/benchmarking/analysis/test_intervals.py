"""Intervals against hand-computed cases, and how often they hold what is true."""

import math

import numpy as np
import pytest

from benchmarking.analysis.intervals import (
    change_over_repeats,
    change_within_runs,
    mean,
    mean_within_run,
    over_repeats,
    quantile,
)


def test_students_t_over_three_repeats() -> None:
    found = over_repeats([9.0, 10.0, 11.0])
    half = 4.302653 / math.sqrt(3)  # t(0.975, 2) times the standard error
    assert (found.value, found.low, found.high) == pytest.approx((10, 10 - half, 10 + half))


def test_one_repeat_is_no_evidence() -> None:
    found = over_repeats([9.0])
    assert (found.value, found.low, found.high) == (9.0, -math.inf, math.inf)
    assert change_over_repeats([9.0], [9.9]).low == -math.inf
    assert (str(found), str(over_repeats([9.0, 9.0]))) == ("9", "9 [9, 9]")


def test_welch_of_two_times_two_repeats() -> None:
    found = change_over_repeats([10.0, 12.0], [21.0, 23.0])
    # variances of 2 over 2 repeats: se^2 = 1 + 1, 2^2 / (1 + 1) = 2 degrees, t(0.975, 2)
    half = 4.302653 * math.sqrt(2) / 11
    assert (found.value, found.low, found.high) == pytest.approx((1, 1 - half, 1 + half))


def test_repeats_without_any_spread_are_certain() -> None:
    found = change_over_repeats([10.0, 10.0], [11.0, 11.0])
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))


def test_a_quantile_is_interpolated() -> None:
    assert quantile(50)(np.array([1.0, 2.0, 4.0, 8.0])) == 3.0
    assert quantile(99)(np.arange(101.0)) == 99.0


def test_batch_means_hold_the_mean_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    samples = rng.exponential(10.0, size=(120, 200))
    held = sum(mean_within_run(list(sample)).holds(10.0) for sample in samples)
    assert 0.89 * 120 <= held <= 120


def test_blocks_widen_the_interval_where_neighbours_are_alike() -> None:
    rng = np.random.default_rng(6)
    independent = rng.normal(10.0, 1.0, 400)
    alike = np.repeat(rng.normal(10.0, 1.0, 20), 20)
    wide, narrow = mean_within_run(list(alike)), mean_within_run(list(independent))
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    wide = change_within_runs(list(alike), list(alike), mean)
    narrow = change_within_runs(list(independent), list(independent), mean)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_a_change_of_ten_percent_is_seen_and_none_is_not() -> None:
    rng = np.random.default_rng(7)
    pairs = rng.gamma(20, 0.5, size=(40, 2, 300))
    equal = [change_within_runs(list(a), list(b), mean) for a, b in pairs]
    slower = [change_within_runs(list(a), list(1.1 * b), mean) for a, b in pairs]
    assert sum(found.holds(0.0) for found in equal) >= 34
    assert sum(found.low > 0 for found in slower) >= 38
    assert sum(found.holds(0.1) for found in slower) >= 34


def test_a_few_requests_show_no_change() -> None:
    found = change_within_runs([10.0, 11.0], [20.0, 22.0], mean)
    assert (found.value, found.low, found.high) == (1.0, -math.inf, math.inf)


def test_a_run_of_one_request_has_a_mean_and_no_bounds() -> None:
    found = mean_within_run([3.0])
    assert (found.value, found.low, found.high) == (3.0, -math.inf, math.inf)
    assert mean_within_run([1.0, 2.0, 6.0]).value == 3.0
