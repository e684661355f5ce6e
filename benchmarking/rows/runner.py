"""Runs the rows of a file in order, and records each when it ends, even if others failed."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from threading import Event

from benchmarking.load.progress import RunProgress
from benchmarking.records import Workload
from benchmarking.rows.config import BenchmarkConfig
from benchmarking.rows.driver import Driver
from benchmarking.rows.row_runner import RowRunner
from benchmarking.rows.run_folder import RunFolder, new_run


def configured_folder(
    config: BenchmarkConfig,
    runner: RowRunner,
    argv: Sequence[str],
    loads: Sequence[Workload],
    refused_rows: Sequence[str],
) -> RunFolder:
    """Returns a new run folder, in which every row waits. `refused_rows` has the faults of rows
    that are left out. Raises NotWritable."""
    shown = config.model_dump(mode="json") | {"refused_rows": list(refused_rows)}
    run = new_run(runner, argv, shown, config.run_name, loads)
    workbook = None
    if config.consolidated_results_dir is not None:
        date = run.started_at.strftime("%Y%m%d")
        name = config.consolidated_name.format(run_name=run.name, date=date)
        workbook = config.consolidated_results_dir / f"{name}.xlsx"
    return RunFolder(config.output_files_dir / run.name, run, workbook)


def run_benchmark(
    config: BenchmarkConfig,
    runner: RowRunner,
    folder: RunFolder,
    stop: Event,
    report: Callable[[str], None],
) -> None:
    """Runs every row that waits; if `stop` is set, keeps what was measured by then. Raises
    NotWritable.

    Rows run one after the other, unless the configuration lets several run at once. When a row
    ends, its thread calls `report` with a few lines about it.
    """
    num_rows = len(folder.run.rows)
    num_workers = config.max_workers if config.concurrency_enabled else 1

    def run_row(number: int) -> None:
        if not stop.is_set():
            driver.measure_waiting(number, config.save_response_texts)
            stop.wait(config.time_delay)

    with closing(RunProgress(num_rows)) as progress, ThreadPoolExecutor(num_workers) as pool:
        driver = Driver(runner, folder, stop, report, progress, config.show_results_in_terminal)
        running = [pool.submit(run_row, number) for number in range(num_rows)]
        try:
            for future in as_completed(running):
                future.result()
        except BaseException:  # an unexpected error in one row stops the others
            stop.set()
            raise
    folder.finish()
