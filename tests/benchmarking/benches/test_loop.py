"""`make bench-loop`, shortened: every step against the mock server behind real gunicorn."""

import json
import math
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarking.analysis.curve import load_point
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.intervals import Interval
from benchmarking.analysis.predict import Beside, Prediction
from benchmarking.analysis.search import Shape
from benchmarking.benches import loop as bench_loop
from benchmarking.benches.loop import run_loop
from benchmarking.benches.loop_proof import (
    LoopPlan,
    Rate,
    Rows,
    crossing_per_s,
    measure_in_turn,
    result_lines,
)
from benchmarking.errors import Disturbed, TargetUnusable
from benchmarking.load.tokenizers import SERVER
from benchmarking.records import Load, read_run
from benchmarking.report.fit_files import PERF_FILE, PICTURE_FILE, read_fit
from benchmarking.serving import MOCK_APP, served
from optimizer.spec import ModelData
from tests.benchmarking.simulated_server import SimulatedServer

STEPS_PER_S, ROWS = 500, 4


def test_the_loop_closes_over_the_mock_server(tmp_path: Path) -> None:
    settings = {
        "USER_ROWS": ROWS,
        "MOCK_TOKENS_PER_SECOND": STEPS_PER_S,
        "OPTIMIZER_STATEFUL": True,
        "OPTIMIZER_STORE_PATH": tmp_path / "optimizer.db",
    }
    with served(tmp_path / "log", MOCK_APP, 60.0, **settings) as api:
        plan = LoopPlan(
            shape=Shape(api.state()["model"], input_tokens=48, output_tokens=40),
            users=2 * ROWS,
            sweep_s=1.0,
            check_s=0.5,
            sweep_shares=(0.15, 0.3, 0.4, 0.5, 0.6),
            length_factors=(1.0,),
            rounds=1,
            last_rows=1,
            max_stolen_share=math.inf,
        )
        result, folder = run_loop(api, plan, SERVER, tmp_path)

    assert (result.fit.max_batch_size, result.fit.batch_bound) == (ROWS, "server")
    assert result.fit.decode.at(2) == pytest.approx(1000 / STEPS_PER_S, rel=0.5)
    assert [beside.load.qps for beside in result.checks] == pytest.approx(
        [0.5 * result.capacity.measured, 0.8 * result.capacity.measured]
    )
    assert replace(result, checks=(), max_rate=Rate(115, 100)).misses() == []
    assert replace(result, checks=(), max_rate=Rate(84, 100)).misses() == [
        "the maximum rate is off by -16.0%"
    ]
    (miss,) = replace(result, checks=(), max_rate=None).misses()
    assert miss.startswith("no maximum rate")
    lines = "\n".join(result_lines(result))
    assert lines.count("| TTFT, ms |") == lines.count("| ITL, ms |") == 2
    assert f"{result.capacity_again_per_s:.2f} at the end" in lines
    assert f"maxBatchSize {ROWS} (from server)" in lines

    run = read_run(folder)
    assert len(run.rows) == 1 + 5 + 4 + 1
    assert len(result.fit.decode.x) == 5  # without the rows of the checks
    assert run.rows[0].load == run.rows[-1].load
    # Near its capacity the server may refuse.
    assert {record.error.code for record in run.records if record.error} <= {"503"}
    assert read_fit(folder) == result.fit
    perf = ModelData.model_validate(json.loads((folder / PERF_FILE).read_text())).models
    assert [entry.max_batch_size for entry in perf] == [ROWS]
    assert (folder / PICTURE_FILE).read_text().startswith("<svg")
    assert '<section id="fit">' in (folder / "report.html").read_text()


def test_a_loop_that_cannot_go_on_says_why_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(given: object) -> None:
        raise TargetUnusable("nobody answers")

    monkeypatch.setattr(bench_loop, "serve_and_run", refused)
    monkeypatch.setattr("sys.argv", ["bench_loop"])
    with pytest.raises(SystemExit) as ended:
        bench_loop.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "bench-loop: nobody answers\n"


def test_sweep_and_checks_are_measured_in_turn_in_an_order_of_the_seed() -> None:
    plan = LoopPlan(Shape("m", 64, 32), users=8, sweep_s=10, check_s=10)
    loads = plan.loads(10.0)
    swept = {load for load, is_check in loads if not is_check}
    assert {load.input_tokens for load in swept} == {48, 64, 80}
    assert {load.qps for load in swept} == {3.0, 4.0, 5.0, 6.0, 7.0, 8.0}
    assert len(swept) == len(loads) - 5 * 6 == 18
    checks = [load for load, is_check in loads if is_check]
    assert {load.input_tokens for load in checks} == {64}
    assert Counter(load.qps for load in checks) == {5.0: 6, 8.0: 12, 6.5: 6, 9.0: 6}
    kinds = [is_check for _, is_check in loads]
    assert sum(before != after for before, after in pairwise(kinds)) > 10
    assert loads == plan.loads(10.0) != replace(plan, seed=1).loads(10.0)


PLAN = LoopPlan(Shape("m", 64, 32), users=8, sweep_s=10, check_s=10, max_disturbed=3)


def measured_in_turn(disturbed: Container[int]) -> tuple[list[Load], Rows]:
    """What was asked for and found, where the host takes too much of the rows `disturbed`."""
    measured = SimulatedServer().measure(PLAN.shape.at_concurrency(2, 2), seed=1)
    point = replace(load_point(*measured), throughput_per_s=10.0)
    turns = measure_in_turn(PLAN)
    asked = [next(turns)]
    try:
        while True:
            stolen_share = 0.11 if len(asked) - 1 in disturbed else 0.1
            asked.append(turns.send(replace(point, stolen_share=stolen_share)))
    except StopIteration as end:
        return asked, end.value


def test_rows_of_which_the_host_took_too_much_are_measured_again() -> None:
    asked, rows = measured_in_turn(disturbed=(0, 3, 4))
    assert rows.disturbed == (0, 3, 4)
    assert asked[0] == asked[1] == PLAN.saturating
    assert asked[3] == asked[4] == asked[5]
    counted = [load for row, load in enumerate(asked) if row not in rows.disturbed]
    assert counted[1:] == [load for load, _ in PLAN.loads(10.0)]
    checked = [load for load, is_check in PLAN.loads(10.0) if is_check]
    assert [asked[row] for row in rows.checked] == checked


def test_a_machine_that_is_never_left_alone_proves_nothing() -> None:
    with pytest.raises(Disturbed, match=r"in 4 of 6 rows the host took more than 10% of a core"):
        measured_in_turn(disturbed=(1, 2, 4, 5))


def test_the_maximum_rate_lies_where_itl_crosses_the_level() -> None:
    def measured(rate_per_s: float, itl_ms: float) -> Beside:
        said = Prediction(rate_per_s, 1.0, 1.0, 0.0, 0.5, 200.0)
        mean = Interval(itl_ms, itl_ms, itl_ms)
        return Beside(Shape("m", 64, 32).at_rate(rate_per_s, 1), said, mean, mean, 64, 32, 1)

    curve = [measured(120, 6.0), measured(80, 2.0), measured(100, 4.0)]
    assert crossing_per_s(curve, Slo(itl_ms=5.5)) == pytest.approx(115)
    assert crossing_per_s(curve, Slo(itl_ms=2.0)) == pytest.approx(80)
    assert crossing_per_s(curve, Slo(itl_ms=1.9)) is None
    assert crossing_per_s(curve, Slo(itl_ms=6.1)) is None
