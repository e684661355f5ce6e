"""The folder of a run, with its raw files and the files derived from them.

`python -m benchmarking recompute` makes the derived files again from the raw ones alone.
"""

import csv
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from threading import Lock

from benchmarking.analysis.bursts import burst_fault
from benchmarking.errors import writing
from benchmarking.load.preflight import user_rows
from benchmarking.machine import describe_machine
from benchmarking.records import Environment, RowRecord, Run, Workload
from benchmarking.results.responses import responses
from benchmarking.results.result_files import file_stem, read_rows, write_row, write_texts
from benchmarking.results.row_metrics import Metrics, run_metrics
from benchmarking.results.summary import summarise
from benchmarking.results.workbook import write_workbook
from benchmarking.rows.config import BenchmarkConfig
from benchmarking.rows.row_runner import RowOutcome, RowRunner
from benchmarking.run_files import append_records, read_run, write_run
from common.files import write_whole

PACKAGES = ("httptools", "uvloop", "tokenizers")
METRICS_JSON, METRICS_CSV = "metrics.json", "metrics.csv"


class RunFolder:
    """Keeps a run on disk while it runs. For any thread. Every method raises NotWritable."""

    def __init__(self, folder: Path, run: Run, workbook: Path | None) -> None:
        self.folder = folder
        self.run = run
        self.workbook = workbook
        self._lock = Lock()
        with writing():
            folder.mkdir(parents=True, exist_ok=False)
            append_records(folder, ())
            write_run(folder, run)
            if workbook is not None:
                workbook.parent.mkdir(parents=True, exist_ok=True)
                if not workbook.exists():  # checks that it can be written; an earlier one stays
                    workbook.touch()
                    workbook.unlink()

    def add(self, number: int, outcome: RowOutcome, texts_too: bool) -> None:
        """Keep a row's records, and its documented files if anything was measured."""
        with self._lock, writing():
            rows = (*self.run.rows[:number], outcome.row, *self.run.rows[number + 1 :])
            self.run = replace(self.run, rows=rows, records=(*self.run.records, *outcome.records))
            append_records(self.folder, outcome.records)
            write_run(self.folder, self.run)
            write_documented(self.folder, self.run, number)
            if texts_too:
                write_texts(self.folder, outcome.row.name, outcome.texts)

    def refuse(self, number: int, reason: str) -> None:
        """Keep the error of a row that could not be run."""
        refused = replace(self.run.rows[number], error=reason)
        self.add(number, RowOutcome(refused, (), ()), texts_too=False)

    def finish(self) -> None:
        """Writes the files about the whole run; no workbook if nothing was measured."""
        with self._lock, writing():
            write_metrics(self.folder, run_metrics(self.run))
            if self.workbook is not None and any(record.is_measured for record in self.run.records):
                write_workbook(self.workbook, list(read_rows(self.folder)))


def new_run_folder(
    parent: Path,
    runner: RowRunner,
    argv: Sequence[str],
    config: BenchmarkConfig | None = None,
    loads: Sequence[Workload] = (),
    refused_rows: Sequence[str] = (),
) -> RunFolder:
    """Returns a new run folder in `parent`, named by `config` or by the local time, in which the
    rows of `loads` wait. `refused_rows` has the faults of rows that are left out. Asks the server
    how many requests it serves at once. Raises NotWritable."""
    started_at = runner.started_at
    shown: dict[str, object] = {}
    name = f"{started_at:%Y%m%d-%H%M%S.%f}"
    workbook = None
    if config is not None:
        shown = config.model_dump(mode="json") | {"refused_rows": list(refused_rows)}
        name = config.run_name or name
        workbook = _workbook(config, name, f"{started_at:%Y%m%d}")
    environment = Environment(
        machine=describe_machine(),
        versions={package: version(package) for package in PACKAGES},
        argv=tuple(argv),
        target=str(runner.target),
        tokenizer=runner.options.tokenizer,
        user_rows=user_rows(runner.target),
    )
    now_s, reason = time.time(), "was not run"
    waiting = [RowRecord(each, file_stem(each), 0.0, 0.0, now_s, error=reason) for each in loads]
    run = Run(name, started_at, runner.options.seed, environment, shown, tuple(waiting))
    return RunFolder(parent / name, run, workbook)


def _workbook(config: BenchmarkConfig, run_name: str, date: str) -> Path | None:
    if config.consolidated_results_dir is None:
        return None
    name = config.consolidated_name.format(run_name=run_name, date=date)
    return config.consolidated_results_dir / f"{name}.xlsx"


def write_documented(folder: Path, run: Run, number: int) -> None:
    """Writes the summary and the individual responses of a row, if it has any."""
    row, records = run.rows[number], run.records_of(number)
    if not records:
        return
    params = run.config.get("sampling_params")
    listed = responses(records, run.started_at)
    summary = summarise(row, listed, params if isinstance(params, dict) else {})
    if fault := burst_fault(records):
        summary["client_rates_unusable"] = fault
    write_row(folder, row.name, summary, listed)


def write_metrics(folder: Path, metrics: Metrics) -> None:
    write_whole(folder / METRICS_JSON, json.dumps(metrics, indent=1, allow_nan=False) + "\n")
    lines = [_flat(row) for row in metrics["rows"]]
    names = dict.fromkeys(name for line in lines for name in line)
    text = StringIO(newline="")
    writer = csv.DictWriter(text, list(names))
    writer.writeheader()
    writer.writerows(lines)
    write_whole(folder / METRICS_CSV, text.getvalue())


def recompute(folder: Path) -> Run:
    """Makes the derived files again from the raw ones. Raises InvalidResults and NotWritable."""
    run = read_run(folder)
    with writing():
        for number in range(len(run.rows)):
            write_documented(folder, run, number)
        write_metrics(folder, run_metrics(run))
    return run


def _flat(metrics: Metrics, prefix: str = "") -> Metrics:
    flat: Metrics = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}_")
        else:
            flat[prefix + name] = value
    return flat
