"""Measures one load after the other into one run folder."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from threading import Event
from typing import TypeVar

from benchmarking.analysis.curve import LoadPoint, load_point, load_points
from benchmarking.errors import RowRefused
from benchmarking.load.progress import RunProgress
from benchmarking.records import Run, Workload
from benchmarking.rows.config import BenchmarkConfig
from benchmarking.rows.row_lines import row_lines
from benchmarking.rows.row_runner import RowRunner
from benchmarking.rows.run_folder import RunFolder

T = TypeVar("T")


@dataclass(slots=True)
class Driver:
    """A run whose rows may be chosen while it runs. For one thread; others may set `stop`. Every
    method that measures raises RowRefused if a row cannot be run, and NotWritable. `report` is
    given a few lines about each row that ends; `with_statistics` adds the documented statistics."""

    runner: RowRunner
    folder: RunFolder
    report: Callable[[str], None]
    progress: RunProgress = field(default_factory=RunProgress)
    with_statistics: bool = False
    stop: Event = field(default_factory=Event)

    @property
    def run(self) -> Run:
        return self.folder.run

    def points(self) -> list[LoadPoint]:
        """Returns the load points of all rows so far that recorded something."""
        return load_points(self.run)

    def measure(
        self, load: Workload, texts_too: bool = False, number: int | None = None
    ) -> LoadPoint | None:
        """Measures a load, in a new row or in the waiting row with this number. Returns None if the
        user stopped it before anything was measured."""
        number = len(self.run.rows) if number is None else number
        with self.progress.row(number, load.model) as show:
            outcome = self.runner.run(number, load, self.stop, show)
        self.folder.add(number, outcome, texts_too)
        self._report_row(number)
        if not any(record.is_measured for record in outcome.records):
            return None
        return load_point(outcome.row, outcome.records)

    def measure_waiting(self, config: BenchmarkConfig) -> None:
        """Measures every row that waits, until the user stops it, and writes the files about the
        whole run. A row that cannot be run keeps the error.

        Rows run one after the other, unless the configuration lets several run at once.
        """

        def measure_row(number: int) -> None:
            if self.stop.is_set():
                return
            try:
                self.measure(self.run.rows[number].load, config.save_response_texts, number)
            except RowRefused as refusal:
                self.folder.refuse(number, str(refusal))
                self._report_row(number)
            self.stop.wait(config.time_delay)

        with ThreadPoolExecutor(config.max_workers if config.concurrency_enabled else 1) as pool:
            running = [pool.submit(measure_row, number) for number in range(len(self.run.rows))]
            try:
                for future in as_completed(running):
                    future.result()
            except BaseException:  # an unexpected error in one row stops the others
                self.stop.set()
                raise
        self.folder.finish()

    def measure_all(self, loads: Iterable[Workload]) -> None:
        """Measures the loads one after the other, until the user stops it."""
        for load in loads:
            if not self.stop.is_set():
                self.measure(load)

    def drive(self, plan: Generator[Workload, LoadPoint, T]) -> T | None:
        """Measures the loads that a plan yields. Returns its result; None if the user stops it."""
        try:
            load = next(plan)
            while not self.stop.is_set():
                point = self.measure(load)
                if point is None:
                    return None
                load = plan.send(point)
        except StopIteration as end:
            finding: T = end.value
            return finding
        return None

    def _report_row(self, number: int) -> None:
        for line in row_lines(self.run, number, self.with_statistics):
            self.report(line)
