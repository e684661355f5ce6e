"""The sentence that a report begins with."""

from dataclasses import replace

import pytest

from benchmarking.analysis.curve import load_points
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.remarks import remarks, verdict
from benchmarking.analysis.search import Shape
from benchmarking.records import Run
from tests.benchmarking.made_runs import made_record, made_run
from tests.benchmarking.simulated_server import SimulatedServer

SHAPE = Shape("m", 64, 16)


@pytest.fixture(scope="module")
def run() -> Run:
    """Rates in no order, the last beyond what the server can do, and a closed loop."""
    server = SimulatedServer(rows=8, row_s=0.00016)
    loads = [SHAPE.at_concurrency(4, 6), *(SHAPE.at_rate(qps, 4) for qps in (60, 20, 400))]
    return made_run([server.measure(load, i)[1] for i, load in enumerate(loads)], loads)


def test_levels_that_some_loads_keep_are_said_with_both_rates(run: Run) -> None:
    found = verdict(load_points(run), Slo(ttft_ms=100))
    assert found.startswith("Meets TTFT ≤ 100 ms for 95% of requests up to ")
    assert "; misses them at " in found


def test_levels_that_all_or_no_loads_keep(run: Run) -> None:
    assert "at every load, up to " in verdict(load_points(run), Slo(ttft_ms=1e9))
    assert verdict(load_points(run), Slo(ttft_ms=1e-9)).endswith(", the lowest load.")


def test_nothing_asked_or_measured_is_no_verdict(run: Run) -> None:
    assert verdict(load_points(run), Slo()) == verdict([], Slo(ttft_ms=1)) == ""


def test_closed_loops_are_judged_where_there_are_no_others(run: Run) -> None:
    closed = [point for point in load_points(run) if point.load.qps is None]
    assert "at every load" in verdict(closed, Slo(ttft_ms=1e9))


def test_where_nothing_was_answered_that_is_the_verdict_and_no_rate() -> None:
    warmup, cut_off = made_record(error="400", is_warmup=True), made_record(error="interrupted")
    rows = [[warmup, made_record(error="400"), cut_off], [made_record(error="429")] * 2]
    points = load_points(made_run(rows))
    why = "Nothing was answered: 2 of 4 failed with 400: made; 2 of 4 failed with 429: made"
    assert verdict(points, Slo(ttft_ms=100)) == verdict(points, Slo()) == why


def test_a_limit_is_said_as_the_most_that_were_served_at_once() -> None:
    waited = replace(made_record(due_s=0.0, late_s=0.15, ttft_s=0.3), num_waits=3)
    answered = [made_record(due_s=due_s, ttft_s=0.1, tokens=1) for due_s in (0.0, 0.1, 0.2)]
    (found,) = remarks([waited, *answered])
    assert "had requests wait 3 times (429 with Retry-After): limited to about 2 at a time" in found
    assert list(remarks(answered)) == []
