"""Service curves: what a server says of its steps, and closed loops of one that says nothing."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarking.analysis.closed_loops import Loop, fit_closed_loops, fit_loops
from benchmarking.analysis.curve import load_points
from benchmarking.analysis.fit import fit_run
from benchmarking.analysis.latency import mean_tokens
from benchmarking.analysis.search import Shape
from benchmarking.analysis.service_curve import CurvePoint, ServiceCurve, Speed, at, read_speed
from benchmarking.errors import InvalidResults, Unfit
from lab.kit.curves import closed_loop_ms, overhead_ms
from lab.kit.mixed_loops import fit_mixed
from tests.benchmarking.simulated_loop import BENT, CONCURRENCIES, SERVER, simulated
from tests.benchmarking.simulated_server import SimulatedServer

SPEED: dict[str, Any] = {
    "decode_ms": [[1, 0.8, 0.02], [4, 1.0, 0.02], [8, 2.2, 0.1]],
    "prefill_ms_per_token": [[1, 0.02, 0.001]],
    "chunk_tokens": 256,
    "measured_at": "2026-11-23T07:00:00Z",
}
SHAPE = Shape("m", 64, 96)


def speed_file(tmp_path: Path, **fields: Any) -> str:
    path = tmp_path / "speed.json"
    path.write_text(json.dumps(SPEED | fields))
    return str(path)


def measured(server: SimulatedServer, prompts: Sequence[int]) -> ServiceCurve:
    loads = [
        Shape("m", tokens, 96).at_concurrency(users, 20)
        for users in CONCURRENCIES
        for tokens in prompts
    ]
    found = fit_closed_loops(load_points(simulated(loads, 1, server)), places=32)
    assert found is not None
    return found


def test_step_costs_are_read_as_the_optimizer_takes_them(tmp_path: Path) -> None:
    curve = read_speed(speed_file(tmp_path, speed_error=0.03), Speed).curve().as_json()
    assert curve["decodeMs"][2] == {"rows": 8, "ms": 2.2, "standardError": 0.1}
    assert curve["promptTokenMs"] == [{"rows": 1, "ms": 0.02, "standardError": 0.001}]
    assert (curve["chunkTokens"], curve["speedError"]) == (256, 0.03)
    assert "budgetTokens" not in curve


def test_costs_of_one_of_several_models_are_read(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"a": SPEED, "b": {**SPEED, "chunk_tokens": 64}}))
    assert read_speed(f"{path}#b", Speed).chunk_tokens == 64
    with pytest.raises(InvalidResults, match="no model 'c'; add #NAME with one of a, b"):
        read_speed(f"{path}#c", Speed)
    path.write_text(json.dumps({"a": SPEED}))
    assert read_speed(str(path), Speed).chunk_tokens == 256


def test_prompt_costs_beside_about_as_many_rows_are_taken_together(tmp_path: Path) -> None:
    rows = [[0.0, 0.02, 0.001], [1.0, 0.03, 0.001], [5.6, 0.04, 0.002]]
    curve = read_speed(speed_file(tmp_path, prefill_ms_per_token=rows), Speed).curve()
    assert [point.rows for point in curve.prompt_token] == [1, 6]
    assert [point.ms for point in curve.prompt_token] == pytest.approx([0.025, 0.04])


def test_points_that_fall_become_the_nearest_that_do_not(tmp_path: Path) -> None:
    falling = [[4, 0.9, 0.01], [1, 1.0, 0.01], [8, 2.0, 0.0]]
    curve = read_speed(speed_file(tmp_path, decode_ms=falling), Speed).curve()
    assert [point.rows for point in curve.decode] == [1, 4, 8]
    assert [point.ms for point in curve.decode] == pytest.approx([0.95, 0.95, 2.0], rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"decode_ms": []}, "decode_ms"),
        ({"decode_ms": [[0, 1.0, 0.0]]}, r"decode_ms\[0\]\[0\]"),
        ({"prefill_ms_per_token": [[1, -1.0, 0.0]]}, r"prefill_ms_per_token\[0\]\[1\]"),
        ({"speed_error": 3}, "speed_error"),
    ],
)
def test_wrong_step_costs_are_refused_by_field(tmp_path: Path, fields: Any, fault: str) -> None:
    with pytest.raises(InvalidResults, match=fault):
        read_speed(speed_file(tmp_path, **fields), Speed)


def test_sources_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidResults, match=r"none\.json"):
        read_speed(str(tmp_path / "none.json"), Speed)
    with pytest.raises(InvalidResults, match=r"127\.0\.0\.1:9"):
        read_speed("http://127.0.0.1:9/speed", Speed)


@pytest.mark.parametrize("server", [SERVER, BENT])
def test_closed_loops_find_the_servers_steps(server: SimulatedServer) -> None:
    curve = measured(server, prompts=(32, 128))
    for point in curve.decode:
        ms = 1000 * (server.step_s + max(server.floor_s, server.row_s * point.rows))
        assert point.ms == pytest.approx(ms, rel=0.03)
        assert point.standard_error < 0.02 * ms
    assert curve.prompt_token[0].ms == pytest.approx(1000 * server.prompt_token_s, rel=0.02)
    assert curve.overhead is not None
    assert [point.ms for point in curve.overhead] == pytest.approx(
        [1000 * server.overhead_s], abs=0.6
    )


def test_prompt_tokens_that_cost_less_beside_more_rows_are_found() -> None:
    exact = ServiceCurve(
        decode=tuple(CurvePoint(n, 2.0 + 0.2 * n, 0.0) for n in (1, 2, 4, 8, 16, 32)),
        prompt_token=tuple(CurvePoint(n, ms, 0.0) for n, ms in ((1, 0.15), (8, 0.1), (32, 0.02))),
        source="closed loops",
        overhead=(CurvePoint(1, 3.0, 0.0),),
    )
    loops = [loop_of(exact, point.rows, w) for point in exact.decode for w in (31, 127)]
    found = fit_loops(loops, has_overhead=True)
    assert found is not None
    for of_found, of_exact in (
        (found.decode, exact.decode),
        (found.prompt_token, exact.prompt_token),
    ):
        assert [p.rows for p in of_found] == pytest.approx([p.rows for p in of_exact])
        assert [p.ms for p in of_found] == pytest.approx([p.ms for p in of_exact], rel=1e-3)


def test_prompt_tokens_that_seem_to_cost_ever_less_still_cost_something() -> None:
    exact = ServiceCurve(
        decode=tuple(CurvePoint(n, 2.0 + 0.2 * n, 0.0) for n in (1, 2, 4, 8, 16, 32)),
        prompt_token=tuple(CurvePoint(n, ms, 0.0) for n, ms in ((1, 0.5), (8, 0.4), (32, 0.001))),
        source="closed loops",
        overhead=(CurvePoint(1, 300.0, 0.0),),
    )
    loops = [loop_of(exact, point.rows, w) for point in exact.decode for w in (31, 127)]
    found = fit_mixed(loops)
    assert found is not None
    assert min(point.ms for point in found.prompt_token) > 0


def test_prompt_tokens_that_cost_more_beside_more_rows_do_so_in_later_steps() -> None:
    """They are attended to: each of n rows has `w` more of them to read in each of its steps."""
    attended_ms = {1: 0.0, 8: 0.004, 32: 0.02}
    exact = ServiceCurve(
        decode=tuple(CurvePoint(n, 1.0 + 0.1 * n, 0.0) for n in attended_ms),
        prompt_token=tuple(CurvePoint(n, 0.1 + 96 * ms, 0.0) for n, ms in attended_ms.items()),
        source="closed loops",
    )
    curve = exact.of_requests(work_tokens=50, output_tokens=96)
    assert [point.ms for point in curve.prompt_token] == pytest.approx([0.1] * 3)
    expected = [1.0 + 0.1 * n + n * 50 * ms for n, ms in attended_ms.items()]
    assert [point.ms for point in curve.decode] == pytest.approx(expected)
    for users in attended_ms:
        assert closed_loop_ms(curve, users, 50, 96) == pytest.approx(
            closed_loop_ms(exact, users, 50, 96)
        )


def loop_of(curve: ServiceCurve, users: int, work_tokens: int) -> Loop:
    """What a closed loop of equal answers takes by a curve."""
    outside_ms, token_ms = overhead_ms(curve, users), at(curve.prompt_token, users)
    e2e_ms = outside_ms + users * token_ms * work_tokens + 96 * at(curve.decode, users)
    ttft_ms = outside_ms + token_ms * work_tokens + at(curve.decode, users)
    return Loop(0.0, 1.0, users, work_tokens, 96, e2e_ms, 0.01, ttft_ms, 0.01, in_service=users)


def test_prompts_of_one_length_leave_the_overhead_unknown() -> None:
    curve = measured(SERVER, prompts=(64,))
    assert curve.overhead is None
    assert "outside of steps unknown" in curve.line()


@pytest.mark.parametrize(("slowness", "error"), [(1.2, 0.12), (20.0, 1.0)])
def test_rows_of_one_load_that_differ_are_the_machines_own_drift(
    slowness: float, error: float
) -> None:
    loads = [SHAPE.at_concurrency(users, 20) for users in (1, 2, 4)] * 2
    slower = replace(SERVER, step_s=slowness * SERVER.step_s, row_s=slowness * SERVER.row_s)
    run = simulated(loads[:3], 1, SERVER)
    again = simulated(loads[3:], 2, slower)
    points = [*load_points(run), *load_points(again)]
    found = fit_closed_loops(points, 32)
    assert found is not None
    assert found.speed_error == pytest.approx(error, abs=0.03)
    assert found.speed_error <= 1  # as the optimizer demands


def test_few_users_or_only_open_loops_make_no_curve() -> None:
    loads = [SHAPE.at_concurrency(users, 5) for users in (1, 2, 64)]
    assert fit_closed_loops(load_points(simulated(loads, 1)), places=32) is None
    assert fit_closed_loops(load_points(simulated([SHAPE.at_rate(5, 10)], 1)), None) is None


def test_loops_whose_prompts_nobody_counted_are_left_out() -> None:
    run = simulated([SHAPE.at_concurrency(users, 20) for users in (1, 2, 4, 8)], 1)
    records = [
        replace(record, usage=None, prompt_tokens=None) if record.row == 3 else record
        for record in run.records
    ]
    points = load_points(replace(run, records=tuple(records)))
    assert fit_closed_loops(points, 32) == fit_closed_loops(points[:3], 32) is not None
    with pytest.raises(Unfit, match="measure with --tokenizer"):
        mean_tokens(points[3].measured)


def test_curve_of_the_server_replaces_that_of_the_loops(tmp_path: Path) -> None:
    loads = [SHAPE.at_concurrency(users, 20) for users in (1, 2, 4, 8, 16)]
    run = simulated(loads, 1)
    by_loops = fit_run(run, "m", max_batch_size=32)
    by_report = fit_run(
        run, "m", max_batch_size=32, speed=read_speed(speed_file(tmp_path), Speed).curve()
    )
    assert by_loops.curve is not None
    assert by_loops.curve.source == "closed loops"
    assert by_report.perf_data("m", "cpu")["serviceCurve"]["decodeMs"][0]["ms"] == 0.8
    assert by_report.validity.concurrency == (1, 8)
    assert "serviceCurve (from speed)" in "\n".join(by_report.lines())
