"""What the documented summary lacks, on times written by hand."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarking.analysis.curve import load_point
from benchmarking.records import ClientOverhead, RequestError, RowRecord, Workload
from benchmarking.results.row_metrics import (
    is_client_bottleneck,
    row_metrics,
    steady_window,
    switching,
)
from benchmarking.rows.row_lines import row_lines
from benchmarking.rows.run_folder import write_metrics
from tests.benchmarking.made_runs import made_record, made_run

ROW = RowRecord(Workload("m", 100, 3, 4, concurrency=2), "stem", 1.0, 5.0, 1.7e9)
# Due every second, each half a second late, first token after 0.2 s, two more after 0.1 s each.
RECORDS = [
    replace(made_record(due_s=due_s, late_s=0.5, ttft_s=0.2, itl_s=0.1, tokens=3), index=i)
    for i, due_s in enumerate((1.0, 2.0, 3.0))
]
WARMUP = made_record(due_s=0.5, late_s=0.0, ttft_s=0.4, itl_s=0.2, tokens=3, is_warmup=True)


def test_latencies_count_from_when_a_request_was_due() -> None:
    metrics = row_metrics(ROW, RECORDS)
    assert metrics["ttft_s"]["p50"] == pytest.approx(0.7)
    assert metrics["end_to_end_latency_s"]["p99"] == pytest.approx(0.9)
    assert metrics["itl_s"]["max"] == pytest.approx(0.1)
    assert metrics["send_delay_s"]["mean"] == pytest.approx(0.5)
    assert metrics["duration_s"] == 4.0


def test_the_queue_is_told_from_prefill_where_the_server_says_it() -> None:
    waited = [made_record(due_s=float(i), queue_s=i / 10) for i in range(3)]
    assert row_metrics(ROW, waited)["server_queue_s"]["max"] == pytest.approx(0.2)
    assert row_metrics(ROW, RECORDS)["server_queue_s"] is None


def test_the_steady_window_leaves_out_the_drain_and_lets_the_warmup_count() -> None:
    window = steady_window(ROW, [WARMUP, *RECORDS])
    assert window is not None
    assert (window["start_s"], window["end_s"]) == (1.0, 3.0)
    # Ended in it: the warm-up at 1.3, and two of the three at 1.9 and 2.9.
    assert window["requests_per_s"] == pytest.approx(3 / 2)
    # Two tokens of the warm-up came at 1.1 and 1.3, and three each of the first two.
    assert window["output_tokens_per_s"] == pytest.approx(8 / 2)


def test_one_round_of_a_closed_loop_is_all_there_is() -> None:
    one_round = [RECORDS[0], replace(RECORDS[0], index=1)]
    window = steady_window(replace(ROW, end_s=1.95), one_round)
    assert window is not None
    assert (window["start_s"], window["end_s"]) == (1.0, 1.95)
    assert window["requests_per_s"] == pytest.approx(2 / 0.95)
    assert steady_window(ROW, [WARMUP]) is None


def test_errors_are_counted_by_code_and_warmups_apart() -> None:
    failed = replace(RECORDS[0], error=RequestError("503", "full"))
    cut_off = replace(RECORDS[0], error=RequestError("interrupted", "stopped"))
    metrics = row_metrics(ROW, [WARMUP, RECORDS[1], failed, cut_off])
    assert metrics["errors_by_code"] == {"503": 1}
    assert metrics["num_requests_warmup"] == 1
    assert (metrics["num_requests_measured"], metrics["num_completed_requests"]) == (2, 1)


def test_a_switch_in_the_warmup_is_seen() -> None:
    first = made_record(server_ttft_s=3.0, switching_s=2.5, is_warmup=True)
    later = [made_record(due_s=float(i), switching_s=0.0) for i in range(1, 5)]
    found = switching([*later, first])
    assert found == {
        "switching_time_s": 2.5,
        "switching_time_estimate_s": pytest.approx(2.9),
    }


@pytest.mark.parametrize(
    ("overhead", "expected"),
    [
        (None, False),
        (ClientOverhead(0.05, 0.0, 0.001, 0.1), False),
        (ClientOverhead(0.9, 0.0, 0.001, 0.1), True),
        (ClientOverhead(0.05, 0.0, 0.1, 0.1), True),
    ],
)
def test_a_client_that_was_slow_is_told(overhead: ClientOverhead | None, expected: bool) -> None:
    assert is_client_bottleneck(replace(ROW, overhead=overhead)) is expected


@pytest.mark.parametrize(
    ("stolen_share", "told"), [(0.034, "2.0% of a core, host took 3.4%"), (None, "2.0% of a core")]
)
def test_what_the_host_took_is_told_beside_the_client(
    stolen_share: float | None, told: str
) -> None:
    run = made_run([RECORDS])
    overhead = ClientOverhead(0.02, 0.0, 0.001, 0.1, stolen_share)
    row = replace(run.rows[0], overhead=overhead)
    (line,) = row_lines(replace(run, rows=(row,)), 0, with_statistics=False)
    assert line.endswith(f"client {told}")
    assert load_point(row, run.records).stolen_share == stolen_share


def test_metrics_are_written_as_json_and_as_a_table(tmp_path: Path) -> None:
    refused = row_metrics(replace(ROW, error="no such model"), [])
    rows = [row_metrics(ROW, RECORDS), refused]
    write_metrics(tmp_path, {"schema_version": 1, "rows": rows})
    assert json.loads((tmp_path / "metrics.json").read_text())["rows"] == rows
    with (tmp_path / "metrics.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["ttft_s_p50"]) == pytest.approx(0.7)
    assert (second["error"], second["ttft_s_p50"]) == ("no such model", "")
