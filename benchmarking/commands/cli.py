"""`python -m benchmarking`: the commands. Exit status is 0 if all went well, 1 if a row or request
failed, 2 if nothing could be done, 130 after Ctrl-C.
"""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from benchmarking.commands.analysis_commands import compare_runs, fit_run, predict_run, report_run
from benchmarking.commands.command_line import (
    FAILURES,
    HEADERS,
    INTERRUPTED,
    OK,
    RESULTS_FOLDER,
    UNUSABLE,
    exit_status,
    shown_argv,
    until_interrupted,
)
from benchmarking.commands.load_commands import capacity, custom, repeat, sweep, switching
from benchmarking.commands.measure_command import measure
from benchmarking.errors import BenchmarkError, TargetUnusable
from benchmarking.load.preflight import agreed, unserved
from benchmarking.load.progress import RunProgress
from benchmarking.load.targets import Endpoint, Headers
from benchmarking.results.result_files import read_rows
from benchmarking.results.workbook import write_workbook
from benchmarking.rows.config import BenchmarkConfig, read_config
from benchmarking.rows.driver import Driver
from benchmarking.rows.model_configs import read_model_configs
from benchmarking.rows.row_runner import RowRunner
from benchmarking.rows.run_folder import new_run_folder, recompute
from benchmarking.settings import load_settings


class Commands(click.Group):
    """Shows the errors of all commands. A URL in place of a command is measured."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith(("http://", "https://")):
            args.insert(0, "measure")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BenchmarkError as error:
            click.echo(f"benchmarking: {error}", err=True)
            sys.exit(UNUSABLE)


@click.group(cls=Commands)
def main() -> None:
    """Measure any server with OpenAI's API, or Hearth with its own routes.

    `hearth bench URL` measures the server at URL and writes a report with a verdict."""


@main.command()
@click.argument("config_path", type=click.Path(path_type=Path), metavar="CONFIG.YAML")
@click.option("--run-name", help="Name of the folder and the workbook; default: the time.")
@click.option("--check", is_flag=True, help="Only check the configuration.")
@HEADERS
def run(config_path: Path, run_name: str | None, check: bool, headers: Headers) -> None:
    """Run the rows of a model_configs CSV and write their results."""
    config = read_config(config_path, run_name)
    configured, faults = read_model_configs(
        config.model_configs_path, not config.use_multiple_prompts
    )
    for fault in faults:
        click.echo(f"{config.model_configs_path}: {fault}; this row is skipped", err=True)
    if check:
        click.echo(f"{len(configured)} rows can be run")
        sys.exit(FAILURES if faults else OK)
    target = _target(config, headers)
    unknown = unserved(target, [load.model for load in configured])
    loads = [load for load in configured if load.model not in unknown]
    if not loads:
        raise TargetUnusable("\n".join(unknown.values()))
    for fault in unknown.values():
        click.echo(f"{fault}; its rows are skipped", err=True)
    runner = RowRunner(agreed(target, loads[0].model, click.echo), config)
    refused = [*faults, *unknown.values()]
    parent = config.output_files_dir
    folder = new_run_folder(parent, runner, shown_argv(), config, loads, refused)
    with closing(RunProgress(len(loads))) as progress:
        shows_all = config.show_results_in_terminal
        driver = Driver(runner, folder, tqdm.write, progress, shows_all)
        until_interrupted(lambda: driver.measure_waiting(config), driver.stop)
    click.echo(f"results in {folder.folder}")
    if folder.workbook is not None and folder.workbook.exists():
        click.echo(f"workbook {folder.workbook}")
    sys.exit(INTERRUPTED if driver.stop.is_set() else exit_status(folder.run))


def _target(config: BenchmarkConfig, headers: Headers) -> Endpoint:
    settings = load_settings()
    return Endpoint(
        kind="hearth" if config.llm_api == "hearth" else "openai",
        base=config.api_base or settings.api_base,
        key=settings.api_key,
        sampling_params=config.sampling_params,
        user_headers=headers,
    )


@main.command(name="consolidate")
@click.argument("folder", type=RESULTS_FOLDER)
@click.argument("workbook", type=click.Path(dir_okay=False, path_type=Path))
def consolidate(folder: Path, workbook: Path) -> None:
    """Make a workbook from the documented files in FOLDER."""
    rows = list(read_rows(folder))
    write_workbook(workbook, rows)
    click.echo(f"{len(rows)} rows in {workbook}")


@main.command(name="recompute")
@click.argument("folder", type=RESULTS_FOLDER)
def recompute_all(folder: Path) -> None:
    """Recreate every derived file in FOLDER from its raw files."""
    click.echo(f"{len(recompute(folder).rows)} rows in {folder}")


for command in (
    measure,
    sweep,
    capacity,
    custom,
    switching,
    repeat,
    fit_run,
    predict_run,
    compare_runs,
    report_run,
):
    main.add_command(command)
