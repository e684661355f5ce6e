"""`hearth bench URL`: measures any server, writes a report and gives a verdict."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarking.analysis.curve import load_points
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.remarks import verdict
from benchmarking.analysis.search import Shape, sweep_rate
from benchmarking.commands.command_line import (
    FAILURES,
    OK,
    RESULTS_FOLDER,
    SECONDS,
    URL,
    is_given,
    slo_options,
)
from benchmarking.commands.load_commands import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    USERS,
    LoadOptions,
    load_options,
)
from benchmarking.errors import InvalidResults, writing
from benchmarking.load.preflight import only_model
from benchmarking.records import Run, Workload
from benchmarking.rows.driver import Driver
from benchmarking.run_files import read_run
from common.files import write_whole

SHARES = (0.25, 0.5, 0.7, 0.85, 0.95)  # shares of the closed loop's rate
USUAL = Slo(ttft_ms=500, itl_ms=50)


@click.command()
@URL
@click.option("--model", help="Default: the only one that the server has.")
@INPUT_TOKENS
@OUTPUT_TOKENS
@click.option("--max-concurrency", type=USERS, default=32, show_default=True)
@click.option("--seconds", type=SECONDS, default=20.0, show_default=True, help="Per row.")
@click.option("--like", type=RESULTS_FOLDER, help="An earlier run, whose loads are sent again.")
@slo_options
@load_options
def measure(
    base: str,
    model: str | None,
    max_concurrency: int,
    seconds: float,
    like: Path | None,
    slo: Slo,
    options: LoadOptions,
    **lengths: Any,
) -> None:
    """Measure the server at URL, for example http://127.0.0.1:8000/v1. URL alone does the same.

    A closed loop finds the server's capacity, then open loops at shares of it show the latencies
    that users see. The report begins with a verdict on the SLOs (default: TTFT 500 ms, ITL 50 ms).
    Set BENCHMARK_API_KEY if the server needs a key. With --like the loads are those of an earlier
    run, and the report compares the two.
    """
    slo = USUAL if slo == Slo() else slo
    earlier: Run | None = None
    if like is None:
        model = model or only_model(options.target_at(base))
        plan = sweep_rate(Shape(model, **lengths), max_concurrency, SHARES, seconds)
        models, num_rows = [model], 1 + len(SHARES)
    else:
        earlier = read_run(like)
        loads = [point.load for point in load_points(earlier)]
        _check_options(like, loads, earlier.seed)
        models, num_rows = [load.model for load in loads], len(loads)
        options = options.like(earlier)

    def work(driver: Driver) -> Run:
        if earlier is None:
            driver.drive(plan)
        else:
            driver.measure_all(loads)
        return driver.run

    run = options.measure(models, work, base, num_rows)
    from benchmarking.report.page import report_html  # matplotlib takes half a second

    page = options.output_dir / run.name / "report.html"
    with writing():
        write_whole(page, report_html(run, slo, before=earlier))
    click.echo(f"report in {page}")
    click.echo(verdict(load_points(run), slo) or "nothing was measured")
    # Refusals near the capacity are measurements. The run has failed only if all requests did.
    sys.exit(OK if any(record.failure is None for record in run.records) else FAILURES)


def _check_options(like: Path, loads: Sequence[Workload], seed: int) -> None:
    """Raises InvalidResults if no loads were measured, and click.UsageError if an option on the
    command line asks for other loads."""
    if not loads:
        raise InvalidResults(f"{like} holds no row that was measured; give --like another run")
    options = click.get_current_context().params
    earlier_values: dict[str, set[Any]] = {
        "model": {load.model for load in loads},
        "input_tokens": {load.input_tokens for load in loads},
        "output_tokens": {load.output_tokens for load in loads},
        "max_concurrency": {load.concurrency for load in loads if load.concurrency},
        "seconds": {_seconds(load, options["seconds"]) for load in loads if load.qps},
        "seed": {seed},
    }
    for name, values in earlier_values.items():
        if is_given(name) and options[name] not in values:
            option, known = f"--{name.replace('_', '-')}", ", ".join(map(str, sorted(values)))
            raise click.UsageError(
                f"{option} {options[name]}: the run of --like {like} has {known or 'none'}; "
                f"leave {option} out"
            )


def _seconds(load: Workload, requested_s: float) -> float:
    """Returns how long an open loop was meant to last: `requested_s` if that gives its requests."""
    assert load.qps is not None
    shape = Shape(load.model, load.input_tokens, load.output_tokens)
    if shape.at_rate(load.qps, requested_s).num_requests == load.num_requests:
        return requested_s
    return round(load.num_requests / load.qps)
