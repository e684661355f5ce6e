"""Runs the rows of a file in order, and records each when it ends, even if others failed."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from benchmarking.errors import RowRefused, TargetUnusable
from benchmarking.load.preflight import agreed, unserved
from benchmarking.load.progress import RunProgress
from benchmarking.load.targets import Endpoint, Headers
from benchmarking.records import Run, Workload
from benchmarking.rows.config import LLM_APIS, BenchmarkConfig
from benchmarking.rows.row_lines import row_lines
from benchmarking.rows.row_runner import Origin, RowOptions, RowRunner
from benchmarking.rows.run_folder import RunFolder, new_run
from benchmarking.settings import Settings


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that a run depends on. `refused_rows` has the faults of rows that are left out."""

    config: BenchmarkConfig
    settings: Settings
    argv: Sequence[str]
    loads: Sequence[Workload] = ()
    refused_rows: Sequence[str] = ()
    headers: Headers = ()
    agreed_target: Endpoint | None = None  # set by `served`

    @property
    def target(self) -> Endpoint:
        if self.agreed_target is not None:
            return self.agreed_target
        config = self.config
        return Endpoint(
            kind=LLM_APIS[config.llm_api],
            base=config.api_base or self.settings.api_base,
            key=self.settings.api_key,
            sampling_params=config.sampling_params,
            own_headers=self.headers,
        )

    def served(self, tell: Callable[[str], None]) -> "RunPlan":
        """Returns the plan with only the rows whose model the server serves, and with a target
        whose requests it accepts. Raises TargetUnusable if it does not answer, or serves none."""
        faults = unserved(self.target, [load.model for load in self.loads])
        loads = [load for load in self.loads if load.model not in faults]
        if not loads:
            raise TargetUnusable("\n".join(faults.values()))
        refused = (*self.refused_rows, *faults.values())
        target = agreed(self.target, loads[0].model, tell)
        return replace(self, loads=loads, refused_rows=refused, agreed_target=target)

    def row_runner(self) -> RowRunner:
        """Returns a runner whose clock starts now."""
        config = self.config
        options = RowOptions(
            tokenizer=config.tokenizer,
            seed=config.seed,
            unique_prefix=config.unique_prefix,
            use_multiple_prompts=config.use_multiple_prompts,
            warmup_requests=config.warmup_requests,
            timeout_s=config.timeout,
            request_timeout_s=config.request_timeout,
        )
        return RowRunner(self.target, options, Origin.now())

    def open_folder(self, runner: RowRunner) -> RunFolder:
        """Returns a new run folder, in which every row waits. Raises NotWritable."""
        config = self.config.model_dump(mode="json") | {"refused_rows": list(self.refused_rows)}
        run = new_run(runner, self.argv, config, self.config.run_name, self.loads)
        return RunFolder(self.config.output_files_dir / run.name, run, self._workbook(run))

    def _workbook(self, run: Run) -> Path | None:
        folder = self.config.consolidated_results_dir
        if folder is None:
            return None
        date = run.started_at.strftime("%Y%m%d")
        return folder / f"{self.config.consolidated_name.format(run_name=run.name, date=date)}.xlsx"


def run_benchmark(plan: RunPlan, stop: Event, tell: Callable[[str], None]) -> RunFolder:
    """Runs every row; if `stop` is set, keeps what was measured by then. Raises NotWritable.

    Rows run one after the other, unless the configuration lets several run at once. When a row
    ends, its thread calls `tell` with a few lines about it.
    """
    config, runner = plan.config, plan.row_runner()
    folder, num_rows = plan.open_folder(runner), len(plan.loads)
    num_workers = config.max_workers if config.concurrency_enabled else 1

    def run_row(number: int) -> None:
        if not stop.is_set():
            _run_row(runner, folder, number, stop, progress, config.save_response_texts)
            for line in row_lines(folder.run, number, config.show_results_in_terminal):
                tell(line)
            stop.wait(config.time_delay)

    with closing(RunProgress(num_rows)) as progress, ThreadPoolExecutor(num_workers) as pool:
        running = [pool.submit(run_row, number) for number in range(num_rows)]
        try:
            for future in as_completed(running):
                future.result()
        except BaseException:  # an unexpected error in one row stops the others
            stop.set()
            raise
    folder.finish()
    return folder


def _run_row(
    runner: RowRunner,
    folder: RunFolder,
    number: int,
    stop: Event,
    progress: RunProgress,
    with_texts: bool,
) -> None:
    load = folder.run.rows[number].load
    with progress.row(number, load.model) as show:
        try:
            outcome = runner.run(number, load, stop, show)
        except RowRefused as refusal:
            folder.refuse(number, str(refusal))
            return
    folder.add(number, outcome, with_texts)
