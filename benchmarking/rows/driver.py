"""Measures one load after the other into one run folder, for sweeps and searches."""

from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from threading import Event
from typing import TypeVar

from benchmarking.analysis.curve import LoadPoint, load_point, load_points
from benchmarking.load.progress import RunProgress
from benchmarking.records import Run, Workload
from benchmarking.rows.row_lines import row_lines
from benchmarking.rows.row_runner import RowRunner
from benchmarking.rows.run_folder import RunFolder, new_run

T = TypeVar("T")


class Driver:
    """A run whose rows are chosen while it runs. For one thread; others may set `stop`. Every
    method that measures raises RowRefused if a row cannot be run, and NotWritable."""

    def __init__(
        self,
        runner: RowRunner,
        folder: RunFolder,
        stop: Event,
        tell: Callable[[str], None],
        progress: RunProgress | None = None,
    ) -> None:
        self.folder = folder
        self._runner = runner
        self._stop = stop
        self._tell = tell
        self._progress = progress or RunProgress()

    @property
    def run(self) -> Run:
        return self.folder.run

    def points(self) -> list[LoadPoint]:
        """Returns the load points of all rows so far that recorded something."""
        return load_points(self.run)

    def measure(self, load: Workload, texts_too: bool = False) -> LoadPoint | None:
        """Measures a load. Returns None if the user stopped it before anything was measured."""
        number = len(self.run.rows)
        with self._progress.row(number, load.model) as show:
            outcome = self._runner.run(number, load, self._stop, show)
        self.folder.add(number, outcome, texts_too)
        for line in row_lines(self.run, number, with_statistics=False):
            self._tell(line)
        if not any(record.is_measured for record in outcome.records):
            return None
        return load_point(outcome.row, outcome.records)

    def measure_all(self, loads: Iterable[Workload]) -> None:
        """Measures the loads one after the other, until the user stops it."""
        for load in loads:
            if not self._stop.is_set():
                self.measure(load)

    def drive(self, plan: Generator[Workload, LoadPoint, T]) -> T | None:
        """Measures the loads that a plan yields. Returns its result; None if the user stops it."""
        try:
            load = next(plan)
            while not self._stop.is_set():
                point = self.measure(load)
                if point is None:
                    return None
                load = plan.send(point)
        except StopIteration as end:
            finding: T = end.value
            return finding
        return None


def new_run_folder(parent: Path, runner: RowRunner, argv: list[str]) -> RunFolder:
    """Returns a new run folder in `parent`, named by the time, without rows. Raises NotWritable."""
    run = new_run(runner, argv, {})
    return RunFolder(parent / run.name, run, workbook=None)
