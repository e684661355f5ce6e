"""`make bench-loop`, shortened: against the mock server, and proved on a simulated one."""

import json
import math
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarking.analysis.curve import load_point
from benchmarking.analysis.intervals import Interval
from benchmarking.analysis.predict import OptimizerApi
from benchmarking.analysis.search import Shape
from benchmarking.errors import TargetUnusable
from benchmarking.load.targets import Endpoint
from benchmarking.records import RequestRecord, RowRecord, Workload
from benchmarking.report.fit_files import PERF_FILE, PICTURE_FILE, read_fit
from benchmarking.run_files import read_run
from lab.benches.loop import bench as bench_loop
from lab.benches.loop.bench import READINGS, SPEEDS_FILE, run_loop
from lab.benches.loop.figures import Compared, LoopResult, result_lines
from lab.benches.loop.plan import LoopPlan, Rows, measure_in_turn
from lab.benches.loop.proof import Cuts, Measured, crossing_per_s, fitted, prove
from lab.benches.loop.servers import Checked
from lab.benches.loop.speed_log import Reading
from lab.kit.curves import overhead_ms
from lab.kit.errors import Disturbed
from lab.kit.servers import MOCK_APP, served
from lab.kit.step_counts import CountedSpeed
from optimizer.spec import ModelData
from tests.benchmarking.made_runs import made_run
from tests.benchmarking.simulated_loop import SERVER
from tests.benchmarking.simulated_server import SimulatedServer

STEPS_PER_S, ROWS = 500, 4


def test_the_loop_closes_over_the_mock_server(tmp_path: Path, optimizer_url: str) -> None:
    settings = {"USER_ROWS": ROWS, "MOCK_TOKENS_PER_SECOND": STEPS_PER_S}
    with served(tmp_path / "log", MOCK_APP, 60.0, **settings) as api:
        model = api.state()["model"]
        server = Checked(
            Endpoint("openai", f"{api.url}/v1"), model, ROWS, speed_url=f"{api.url}/speed"
        )
        plan = LoopPlan(
            shape=Shape(model, input_tokens=48, output_tokens=40),
            places=ROWS,
            closed_s=0.1,
            check_s=0.5,
            rounds=1,
            passes=1,
            max_stolen_share=math.inf,
        )
        result, folder = run_loop(server, plan, OptimizerApi(optimizer_url), tmp_path)

    assert result.fit.max_batch_size == ROWS
    assert result.fit.curve is not None
    assert result.fit.curve.decode[-1].ms > 0.5 * 1000 / STEPS_PER_S
    assert [check.share for check in result.checks] == [0.5, 0.65, 0.8, 0.9]
    lines = "\n".join(result_lines(result))
    # Of requests, of rates, and by the loops alone where steps took long enough to be counted on.
    num_shown = 8 + len(result.by_loops)
    assert lines.count("| TTFT, ms |") == lines.count("| ITL, ms |") == num_shown
    assert READINGS.validate_json((folder / SPEEDS_FILE).read_bytes())
    run = read_run(folder)
    assert len(run.rows) == 2 + 8 + 2 + 1 + 4 + 1
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

    monkeypatch.setattr(bench_loop, "server_of", refused)
    monkeypatch.setattr("sys.argv", ["bench_loop"])
    with pytest.raises(SystemExit) as ended:
        bench_loop.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "bench-loop: nobody answers\n"


STEP_S = 1e-6  # so short that a row's number of steps is exact

PLAN = LoopPlan(Shape("m", 64, 96), places=32, closed_s=2, check_s=10, max_disturbed=3)


def slowed(server: SimulatedServer, slowness: float) -> SimulatedServer:
    return replace(
        server,
        step_s=slowness * server.step_s,
        row_s=slowness * server.row_s,
        prompt_token_s=slowness * server.prompt_token_s,
        overhead_s=slowness * server.overhead_s,
    )


def said(steps_s: float, num_steps: int) -> CountedSpeed:
    return CountedSpeed(
        decode_ms=[(1, 9.0, 0.0)],
        prefill_ms_per_token=[(0, 0.9, 0.0)],
        steps_s=steps_s,
        steps_by_tokens=[(1, num_steps, 0)] if num_steps else [],
    )


def simulated(plan: LoopPlan, server: SimulatedServer, sigma: float, says: bool) -> Measured:
    """All that the plan asks for, of a server whose speed drifts by `sigma` from row to row.
    `says`: whether it counts its steps."""
    rng = np.random.default_rng(plan.seed)
    turns = measure_in_turn(plan)
    load, now_s, drift = next(turns), 0.0, 0.0
    loads: list[Workload] = []
    of_rows: list[list[RequestRecord]] = []
    rows: list[RowRecord] = []
    readings = [Reading(0.0, said(0.0, 0))]
    steps = 0.0
    while True:
        drift = 0.9 * drift + sigma * float(rng.standard_normal())
        number = len(rows)
        row, records = slowed(server, math.exp(drift)).measure(load, number)
        records = [later(record, now_s, number, load) for record in records]
        measured = [record for record in records if record.is_measured]
        row = replace(
            row, start_s=measured[0].scheduled_s, end_s=max(each.end_s for each in measured)
        )
        steps_s = readings[-1].speed.steps_s + row.end_s - now_s
        steps += (row.end_s - now_s) / (math.exp(drift) * STEP_S)
        now_s = row.end_s + 1
        readings.append(Reading(now_s, said(steps_s, round(steps))))
        loads.append(load)
        of_rows.append(records)
        rows.append(row)
        try:
            load = turns.send(load_point(row, records))
        except StopIteration as end:
            run = made_run(of_rows, loads)
            everything = tuple(record for records in of_rows for record in records)
            run = replace(run, rows=tuple(rows), records=everything)
            return Measured(run, end.value, readings if says else ())


def later(record: RequestRecord, by_s: float, row: int, load: Workload) -> RequestRecord:
    return replace(
        record,
        row=row,
        is_warmup=record.index < (load.concurrency or math.ceil(load.qps or 0)),
        scheduled_s=record.scheduled_s + by_s,
        sent_s=record.sent_s + by_s,
        end_s=record.end_s + by_s,
        chunk_s=tuple(chunk_s + by_s for chunk_s in record.chunk_s),
    )


def proved(
    plan: LoopPlan,
    optimizer_url: str,
    sigma: float,
    server: SimulatedServer = SERVER,
    says: bool = False,
) -> LoopResult:
    measured = simulated(plan, server, sigma, says)
    return prove(plan, measured, OptimizerApi(optimizer_url), Cuts(chunk_tokens=256))


def test_of_a_steady_machine_every_load_is_predicted(optimizer_url: str) -> None:
    result = proved(replace(PLAN, rounds=2, passes=1), optimizer_url, sigma=0.0)
    assert result.misses() == []
    for check in result.checks:
        assert {"simulation"} == set(check.methods)
        # At 90 % of capacity 1 % of it is much of the queue.
        assert abs(check.ttft.error) < (0.05 if check.share < 0.9 else 0.2)
        assert abs(check.itl.error) < 0.02
        assert abs(check.answered.error) < 0.02
    assert result.speeds.error < 0.005
    # A slower machine has longer steps, and the nearer to its capacity, the longer a queue.
    assert result.ttft_per_speed[0] >= 1
    assert [*result.ttft_per_speed] == sorted(result.ttft_per_speed)
    capacity = result.rates[0]
    assert capacity.predicted == pytest.approx(capacity.measured.value, rel=0.02)


def test_what_requests_wait_for_outside_of_steps_grows_with_those_in_service(
    optimizer_url: str,
) -> None:
    crowded = replace(SERVER, contention_s=0.001)
    result = proved(replace(PLAN, rounds=1, passes=1), optimizer_url, 0.0, crowded)
    for check in result.checks[:3]:
        assert abs(check.ttft.error) < 0.1
        assert abs(check.itl.error) < 0.02
    curve = result.fit.curve
    assert curve is not None
    assert overhead_ms(curve, 1) == pytest.approx(1000 * SERVER.overhead_s, rel=0.1)
    assert overhead_ms(curve, 17) == pytest.approx(1000 * (SERVER.overhead_s + 0.016), rel=0.2)


@pytest.mark.parametrize("handling_s", [0.0, 0.003])
def test_what_requests_that_come_at_once_wait_for_is_found(
    optimizer_url: str, handling_s: float
) -> None:
    shape = Shape("m", 24, 96)  # of which eight fit into a step
    plan, cuts = replace(PLAN, shape=shape, rounds=1, passes=1), Cuts(chunk_tokens=256)
    measured = simulated(plan, replace(SERVER, handling_s=handling_s), 0.0, says=False)
    curve = fitted(plan, measured, OptimizerApi(optimizer_url), cuts).moments.curve
    assert curve.handling_ms == pytest.approx(1000 * handling_s, rel=0.1, abs=0.1)


def test_predictions_are_for_the_speed_of_the_moment(optimizer_url: str) -> None:
    result = proved(replace(PLAN, rounds=2, passes=1, seed=2), optimizer_url, sigma=0.02)
    assert 0.01 < result.speeds.error < 0.1
    half, most = result.checks[:2]
    for figure in (half.ttft, half.itl, most.itl):
        assert abs(figure.error) < 0.1
        assert 0.01 < (figure.half_width or 0) < 0.3


def test_a_server_that_counts_its_steps_says_how_fast_each_row_was(optimizer_url: str) -> None:
    result = proved(replace(PLAN, rounds=1, passes=1), optimizer_url, sigma=0.2, says=True)
    assert result.speeds.error < 0.01
    for check, by_loops in zip(result.checks[:2], result.by_loops, strict=False):
        assert abs(check.itl.error) < 0.02
        assert abs(check.ttft.error) < 0.1
        assert (by_loops.itl.half_width or 0.0) > 0.1 > (check.itl.half_width or 0.0)


def test_closed_loops_and_checks_are_measured_in_turn_in_an_order_of_the_seed() -> None:
    loads = PLAN.loads(10.0)
    checks = [load for load, is_check in loads if is_check]
    assert Counter(load.qps for load in checks) == {5.0: 4, 6.5: 4, 8.0: 4, 9.0: 4}
    beside = Counter((load.concurrency, load.input_tokens) for load, check in loads if not check)
    assert beside[(64, 64)] == PLAN.rounds
    doubled = {(users, tokens): 2 for users in (1, 2, 4, 8, 16, 32) for tokens in (32, 128)}
    between = {(users, 64): 2 for users in (3, 6, 12, 24, 32)}
    at_once = {(users, 64): 2 for users in (2, 4, 8)}
    assert beside == doubled | between | at_once | {(64, 64): PLAN.rounds}
    kinds = "".join("c" if is_check else "-" for _, is_check in loads)
    assert "cc" not in kinds
    assert loads == PLAN.loads(10.0) != replace(PLAN, seed=1).loads(10.0)


def measured_in_turn(disturbed: Container[int]) -> tuple[list[Workload], Rows]:
    """What was asked for and found, where the host takes too much of the rows `disturbed`."""
    measured = SimulatedServer().measure(PLAN.shape.at_concurrency(2, 2), seed=1)
    turns = measure_in_turn(PLAN)
    asked = [next(turns)]
    try:
        while True:
            stolen_share = 0.11 if len(asked) - 1 in disturbed else 0.1
            point = replace(load_point(*measured), load=asked[-1], stolen_share=stolen_share)
            asked.append(turns.send(point))
    except StopIteration as end:
        return asked, end.value


def test_rows_of_which_the_host_took_too_much_are_measured_again() -> None:
    asked, rows = measured_in_turn(disturbed=(0, 3, 4))
    assert rows.disturbed == (0, 3, 4)
    users = [(load.concurrency, load.input_tokens, load.qps) for load in asked]
    assert users[0] == users[1] == (1, 32, None)
    assert users[3] == users[4] == users[5]
    assert not {0, 3, 4} & set(rows.checked)
    assert len(rows.volleys()) == 2 * 3
    assert len(rows.closed()) == len(asked) - 3 - len(rows.checked) - len(rows.volleys())


def test_a_machine_that_is_never_left_alone_proves_nothing() -> None:
    with pytest.raises(Disturbed, match=r"in 4 of 6 rows the host took more than 10% of a core"):
        measured_in_turn(disturbed=(1, 2, 4, 5))


@pytest.mark.parametrize(
    ("predicted", "bounds", "most", "verdict"),
    [
        (109, None, 0.3, "within 10%"),
        (112, None, 0.3, "missed"),
        (112, (95.0, 130.0), 0.3, "in its interval of ± 16%"),
        (112, (101.0, 123.0), 0.3, "missed"),
        (112, (50.0, 170.0), 0.3, "missed: in an interval of ± 54%"),
        (112, (50.0, 170.0), None, "in its interval of ± 54%"),
    ],
)
def test_a_figure_is_near_or_in_an_interval_that_says_something(
    predicted: float, bounds: tuple[float, float] | None, most: float | None, verdict: str
) -> None:
    figure = Compared("ITL", predicted, bounds, Interval(100, 90, 110), 0.1, most)
    assert figure.verdict == verdict
    assert figure.is_missed == verdict.startswith("missed")


def test_the_maximum_rate_lies_where_itl_crosses_the_level() -> None:
    curve = [(120.0, 6.0), (80.0, 2.0), (100.0, 4.0)]
    assert crossing_per_s(curve, 5.5) == pytest.approx(115)
    assert crossing_per_s(curve, 2.0) == pytest.approx(80)
    assert crossing_per_s(curve, 1.9) is None
    assert crossing_per_s(curve, 6.1) is None
