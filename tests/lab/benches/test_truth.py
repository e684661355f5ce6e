"""`make bench-truth`: what it draws, and what it makes of a row. The server is simulated."""

from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarking.analysis.curve import load_point
from benchmarking.analysis.predict import OptimizerApi
from benchmarking.analysis.search import Shape
from benchmarking.analysis.service_curve import CurvePoint, ServiceCurve
from lab.benches.loop.plan import LoopPlan
from lab.benches.loop.proof import Predictor
from lab.benches.truth.bench import is_missed, lines, random_loads, rounds_of, simulated
from lab.kit.moments import Drift
from tests.benchmarking.simulated_loop import SERVER

PLAN = LoopPlan(Shape("m", 64, 96), places=32, closed_s=1, check_s=20, seed=3)
DRIFT = Drift((0.0, 1.0), (0.0, 0.1), (1, 1), 1, 0.05)


def test_random_loads_are_those_of_the_seed_and_within_their_shares() -> None:
    loads = random_loads(PLAN, 20, capacity_per_s=40.0)
    assert loads == random_loads(PLAN, 20, 40.0) != random_loads(replace(PLAN, seed=4), 20, 40.0)
    assert all(32 <= load.input_tokens <= 96 for load in loads)
    assert all(48 <= load.output_tokens <= 144 for load in loads)
    assert all(4 < (load.qps or 0) < 64 for load in loads)
    assert len({(load.input_scv, load.output_scv, load.arrival_scv) for load in loads}) > 8
    in_turn = PLAN.in_turn(rounds_of(loads))
    assert sum(is_check for _, is_check in in_turn) == 20
    assert not any(first and second for (_, first), (_, second) in pairwise(in_turn))


CURVE = ServiceCurve(
    decode=tuple(CurvePoint(n, 1000 * (SERVER.step_s + n * SERVER.row_s), 0.01) for n in (1, 32)),
    prompt_token=(CurvePoint(1, 1000 * SERVER.prompt_token_s, 0.0),),
    source="made",
    overhead=(CurvePoint(1, 1000 * SERVER.overhead_s, 0.0),),
    chunk_tokens=256,
)
PERF = {"name": "m", "acc": "a", "maxBatchSize": 32, "atTokens": 96}


def test_a_row_is_simulated_by_the_requests_that_came(optimizer_url: str) -> None:
    load = replace(PLAN.shape.at_rate(28.0, 20), arrival_scv=1.0)
    point = load_point(*SERVER.measure(load, seed=5))
    found = simulated(Predictor(OptimizerApi(optimizer_url), PERF), point, CURVE)
    assert found.method == "simulation"
    ttft_error, itl_error = found.errors
    assert abs(ttft_error) < 0.05
    assert abs(itl_error) < 0.01
    assert not is_missed(found)
    missed = replace(found, measured_itl_ms=1.2 * found.measured_itl_ms)
    assert is_missed(missed)
    text = "\n".join(lines([found, missed], DRIFT))
    assert "TTFT: median error" in text
    assert "ITL: median error" in text
    assert "1 of 2 within 10%" in text
    assert text.count("| 28.00 | 1 | 64, 0 | 96, 0 |") == 2


def test_requests_wait_from_when_they_were_due_and_come_when_they_were_sent(
    optimizer_url: str,
) -> None:
    row, records = SERVER.measure(PLAN.shape.at_rate(28.0, 20), seed=5)
    records = [
        replace(record, scheduled_s=record.scheduled_s - 0.05 * (number % 2))
        for number, record in enumerate(records)
    ]
    predictor = Predictor(OptimizerApi(optimizer_url), PERF)
    found = simulated(predictor, load_point(row, records), CURVE)
    assert found.ttft_ms[0] < found.ttft_ms[1] < found.ttft_ms[2]
    assert all(abs(error) < 0.05 for error in found.errors)


@pytest.mark.parametrize(("at_s", "slowness"), [(-1.0, 1.0), (0.5, 1.0513), (9.0, 1.1052)])
def test_a_moment_is_as_slow_as_the_loops_around_it(at_s: float, slowness: float) -> None:
    assert DRIFT.slowness(at_s, at_s) == pytest.approx(slowness, abs=1e-4)
