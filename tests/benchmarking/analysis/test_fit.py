"""The fit recovers what it was given, through noise and outliers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarking.analysis.fit import Fit, fit, robust_line
from benchmarking.analysis.fit_points import Places, Point, batch_limit, fit_points, places_of
from benchmarking.analysis.search import Shape
from benchmarking.errors import Unfit
from benchmarking.records import RequestRecord
from optimizer.spec import PerfData
from tests.benchmarking.made_runs import made_record, made_run
from tests.benchmarking.simulated_server import SimulatedServer

ALPHA, BETA, GAMMA, DELTA = 2.0, 0.15, 6.0, 0.004
PLACES = Places(32, "rows")


def made_points(seed: int, noise: float = 0.03, outliers: float = 0.1) -> list[Point]:
    """A sweep of 8 batch sizes and 3 prompt lengths; outliers are 2 to 5 times too slow."""
    rng = np.random.default_rng(seed)

    def measured(true_ms: float) -> float:
        disturbed = rng.uniform(2, 5) if rng.random() < outliers else 1.0
        return float(true_ms * rng.normal(1, noise) * disturbed)

    return [
        Point(0, k, 64, n, measured(ALPHA + BETA * n), n, measured(GAMMA + DELTA * k * n), n)
        for n in (1, 2, 4, 8, 12, 16, 24, 32)
        for k in (96, 128, 160)
        for _ in range(3)
    ]


def truths_held(found: Fit) -> list[bool]:
    return [
        found.decode.intercept.holds(ALPHA),
        found.decode.slope.holds(BETA),
        found.prefill.intercept.holds(GAMMA),
        found.prefill.slope.holds(DELTA),
    ]


def test_known_parameters_lie_within_the_intervals_as_often_as_they_should() -> None:
    held = [truths_held(fit(made_points(seed), PLACES)) for seed in range(50)]
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_a_tenth_of_outliers_moves_the_lines_by_a_few_percent_only(outliers: float) -> None:
    found = fit(made_points(3, outliers=outliers), PLACES)
    assert found.decode.at(16) == pytest.approx(ALPHA + BETA * 16, rel=0.03)
    assert found.prefill.at(128 * 16) == pytest.approx(GAMMA + DELTA * 128 * 16, rel=0.03)


@given(
    intercept=st.floats(0.01, 1000),
    slope=st.floats(0.001, 100),
    x=st.lists(st.integers(1, 64), min_size=4, max_size=30).filter(lambda x: len(set(x)) > 1),
)
def test_points_on_a_line_give_that_line(intercept: float, slope: float, x: list[int]) -> None:
    line = robust_line([float(n) for n in x], [intercept + slope * n for n in x], "a line")
    for n in set(x):
        assert line.at(n) == pytest.approx(intercept + slope * n, rel=1e-3)
    assert line.r_squared > 0.999


def test_a_falling_line_becomes_flat_rather_than_negative() -> None:
    line = robust_line([1, 2, 3, 4], [10, 9, 8, 7], "falling")
    assert line.slope.value == pytest.approx(0, abs=1e-6)
    assert line.slope.low == 0


def test_points_far_off_the_line_are_told() -> None:
    assert not any("off the line" in line for line in fit(made_points(1), PLACES).lines())
    scattered = fit(made_points(1, noise=0.5), PLACES)
    assert any("off the line: measure longer" in line for line in scattered.lines())


def test_one_batch_size_does_not_make_a_line() -> None:
    with pytest.raises(Unfit, match="ITL over concurrency: 4 points at 1 places"):
        fit([made_points(0)[0]] * 4, None)
    with pytest.raises(Unfit, match="0 points"):
        fit([], None)


def test_the_largest_batch_comes_from_the_servers_places_or_the_itl() -> None:
    points = made_points(1, noise=0.0, outliers=0.0)
    for limit, slo_itl_ms, expected in (
        (24, None, (24, "rows")),
        (24, 5.01, (20, "itl")),
        (16, 5.01, (16, "rows")),
        (None, 1.0, (1, "itl")),
    ):
        found = fit(points, Places(limit, "rows") if limit else None, slo_itl_ms)
        assert (found.max_batch_size, found.batch_bound) == expected
    with pytest.raises(Unfit, match="give it as --max-batch-size"):
        fit(points, None)


def test_places_are_what_the_server_says_unless_others_are_given() -> None:
    run = made_run([[made_record(ttft_s=0.1 + 0.11 * (i // 2)) for i in range(3)]])
    assert places_of(run) == Places(2, "rows")
    telling = replace(run, environment=replace(run.environment, user_rows=32))
    assert places_of(telling) == Places(32, "server")
    assert places_of(telling, max_batch_size=8) == Places(8, "given")
    assert places_of(made_run([side_by_side(1)])) is None


def test_the_optimizer_reads_what_the_fit_writes() -> None:
    found = fit(made_points(2, noise=0.0, outliers=0.0), PLACES)
    perf = PerfData.model_validate(json.loads(json.dumps(found.perf_data("tiny", "cpu"))))
    assert (perf.name, perf.acc, perf.max_batch_size, perf.at_tokens) == ("tiny", "cpu", 32, 64)
    assert perf.decode_parms.alpha == pytest.approx(ALPHA, rel=1e-3)
    assert perf.prefill_parms.delta == pytest.approx(DELTA, rel=1e-3)
    assert found.validity.concurrency == (1, 32)


def side_by_side(count: int) -> list[RequestRecord]:
    """`count` requests sent together; tokens 10 ms apart."""
    return [made_record(ttft_s=0.1, itl_s=0.01, tokens=11) for _ in range(count)]


def test_a_row_is_a_point() -> None:
    points = fit_points(made_run([side_by_side(40), side_by_side(4)]), None)
    assert [point.row for point in points] == [0, 1]
    assert (points[1].itl_ms, points[1].ttft_ms) == pytest.approx((10, 100))
    assert (points[1].input_tokens, points[1].output_tokens) == (100, 11)


def test_concurrency_is_what_requests_met_themselves_included() -> None:
    (point,) = fit_points(made_run([side_by_side(4)]), None)
    assert point.concurrency == point.prefill_concurrency == 4
    later = replace(made_record(due_s=0.05), index=3)
    (point,) = fit_points(made_run([[*side_by_side(3), later]]), None)
    assert point.concurrency == pytest.approx((3 + 3 + 3 + 4) / 4)


@pytest.mark.parametrize("users", [1, 8, 32])
def test_users_of_a_closed_loop_meet_each_other(users: int) -> None:
    load = Shape("m", 64, 64).at_concurrency(users, 20)
    _, records = SimulatedServer().measure(load, seed=1)
    (point,) = fit_points(made_run([records], [load]), 32)
    assert point.concurrency == pytest.approx(users)


@pytest.mark.parametrize("prompt_token_s", [0.00003, 0.00015])
def test_what_requests_met_obeys_littles_law(prompt_token_s: float) -> None:
    """Poisson arrivals see time averages, also where prompts stall the answers beside them."""
    load = Shape("m", 64, 64).at_rate(30, 300)
    _, records = SimulatedServer(prompt_token_s=prompt_token_s).measure(load, seed=1)
    (point,) = fit_points(made_run([records], [load]), 32)
    assert point.ttft_ms is not None
    service_s = (point.ttft_ms + 63 * point.itl_ms) / 1000
    assert point.concurrency == pytest.approx(30 * service_s + 1, rel=0.03)


def test_who_queues_counts_neither_in_service_nor_for_prefill() -> None:
    records = [*side_by_side(2), made_record(due_s=0.05, ttft_s=1.0)]
    (point,) = fit_points(made_run([records]), max_batch=2)
    assert point.concurrency == point.prefill_concurrency == 2
    assert point.ttft_ms == pytest.approx(100)


def test_warm_up_is_no_point_but_is_in_flight() -> None:
    warmup = made_record(ttft_s=9.0, is_warmup=True)
    (point,) = fit_points(made_run([[warmup, made_record()]]), None)
    assert point.concurrency == 2
    assert point.ttft_ms == pytest.approx(100)


def test_failures_make_no_points() -> None:
    assert fit_points(made_run([[made_record(error="500")]]), None) == []


def test_the_servers_places_show_once_enough_more_are_in_flight() -> None:
    """Two places: each answer takes 0.1 s, the others wait for their turn."""

    def in_turns(count: int) -> list[RequestRecord]:
        return [made_record(ttft_s=0.1 + 0.11 * (i // 2)) for i in range(count)]

    assert batch_limit(made_run([in_turns(3)])) == 2
    assert batch_limit(made_run([in_turns(2)])) is None
    assert batch_limit(made_run([[made_record(error="500")]])) is None
