"""The raw files give back exactly what was measured."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarking.analysis.goodput import Slo
from benchmarking.errors import InvalidResults
from benchmarking.records import (
    ClientOverhead,
    Environment,
    RequestError,
    RequestRecord,
    RowRecord,
    Run,
    ServerUsage,
    Workload,
)
from benchmarking.report.page import report_html
from benchmarking.results.row_metrics import run_metrics
from benchmarking.rows.run_folder import RunFolder
from benchmarking.run_files import RAW_FILE, RUN_FILE, append_records, read_run, write_run

ENVIRONMENT = Environment("a machine", {"hearth": "1"}, ("run", "c.yaml"), "openai http://x", "y")


def example_run() -> Run:
    load = Workload("m", 100, 20, 3, qps=2.5, qps_distribution="exponential")
    row = RowRecord(load, "stem", 1.0, 9.5, 1.7e9, ClientOverhead(0.01, 1e-5, 1e-4, 0.1))
    usage = ServerUsage(prompt_tokens=110, ttft_s=0.1, batch_size_used=4, switching_time_s=0.0)
    done = RequestRecord(
        0, 1, "m", "p1", 1.5, 1.6, 2.5, (1.7, 2.4), (2, 1), 100, 3, usage, 200, "length"
    )
    failed = RequestRecord(0, 0, "m", "p0", 1, 1, 1.2, error=RequestError("503", "full"))
    warmup = RequestRecord(0, 0, "m", "p0", 0, 0, 0.5, is_warmup=True)
    started_at = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    config: dict[str, object] = {"timeout": 600, "seed": None}
    return Run("r", started_at, 7, ENVIRONMENT, config, (row,), (warmup, done, failed))


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = example_run()
    append_records(tmp_path, run.records[:1])
    append_records(tmp_path, run.records[1:])
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run


def test_a_record_that_was_cut_short_costs_no_other(tmp_path: Path) -> None:
    run = example_run()
    append_records(tmp_path, run.records)
    write_run(tmp_path, run)
    whole = (tmp_path / RAW_FILE).read_bytes()
    (tmp_path / RAW_FILE).write_bytes(whole[:-10])
    assert read_run(tmp_path).records == run.records[:-1]


def test_records_of_a_row_leave_the_warmup_out_and_follow_the_schedule() -> None:
    assert [record.prompt_name for record in example_run().records_of(0)] == ["p0", "p1"]
    assert example_run().records_of(1) == []


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).write_text('{"name": "r"}')
    with pytest.raises(InvalidResults, match="started_at"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, None),
        ({"finish_reason": None}, None),
        ({"chunk_s": ()}, "empty"),
        ({"chunk_s": (), "finish_reason": "tool_calls"}, "empty"),
        ({"finish_reason": "error"}, "server"),
        ({"finish_reason": "abort"}, "server"),
        ({"error": RequestError("timeout", "late")}, "timeout"),
        ({"error": RequestError("timeout", "late"), "chunk_s": ()}, "timeout"),
    ],
)
def test_what_a_completed_request_is(fields: dict[str, Any], code: str | None) -> None:
    done = example_run().records[1]
    failure = replace(done, **fields).failure
    assert (failure.code if failure else None) == code


def test_a_workbook_stays_until_another_run_has_its_own(tmp_path: Path) -> None:
    book = tmp_path / "results.xlsx"
    book.write_text("of an earlier run")
    RunFolder(tmp_path / "r", example_run(), book)
    assert book.read_text() == "of an earlier run"


def test_records_of_a_row_that_a_kill_kept_from_the_run_hurt_no_figure(tmp_path: Path) -> None:
    run = example_run()
    append_records(tmp_path, [*run.records, *(replace(each, row=1) for each in run.records)])
    write_run(tmp_path, run)
    found = read_run(tmp_path)
    assert run_metrics(found) == run_metrics(run)
    assert report_html(found, Slo())
