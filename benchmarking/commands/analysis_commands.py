"""The commands that only read measurements: fit, predict, compare, report."""

import json
import math
import sys
from pathlib import Path

import click

from benchmarking.analysis.compare import RowChange, Verdict, compare, unmatched
from benchmarking.analysis.curve import load_points
from benchmarking.analysis.fit import fit_run as fit_rows_of
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.predict import (
    OptimizerApi,
    as_json,
    comparison_lines,
    predict,
    warning_lines,
)
from benchmarking.analysis.service_curve import Speed, read_speed
from benchmarking.commands.command_line import (
    FAILURES,
    RESULTS_FOLDER,
    FiniteRange,
    slo_options,
)
from benchmarking.errors import InvalidResults, writing
from benchmarking.records import Run
from benchmarking.report.fit_files import PERF_FILE, PREDICT_FILE, read_fit, read_perf, write_fit
from benchmarking.run_files import read_run
from common.files import write_whole


@click.command("fit")
@click.argument("folder", type=RESULTS_FOLDER)
@click.option("--model", help="Needed if the run has several.")
@click.option("--accelerator", default="cpu", show_default=True)
@click.option("--slo-itl-ms", type=FiniteRange(0, min_open=True), help="Limits the batch size.")
@click.option(
    "--max-batch-size", type=click.IntRange(1), help="Default: reported by the server, or observed."
)
@click.option("--speed", help="Step costs: a file, or a server's http://127.0.0.1:7000/speed")
@click.option("--optimizer", "optimizer_url", help="For example http://127.0.0.1:7000")
def fit_run(
    folder: Path,
    model: str | None,
    accelerator: str,
    slo_itl_ms: float | None,
    max_batch_size: int | None,
    speed: str | None,
    optimizer_url: str | None,
) -> None:
    """Fit alpha, beta, gamma and delta to the sweep in FOLDER, and a service curve.

    The curve comes from --speed, or from closed loops with three or more numbers of users. Writes
    fit.json, perf.json and fit.svg there; --optimizer also posts the result.
    """
    run = read_run(folder)
    model = model or _only_model(run)
    curve = read_speed(speed, Speed).curve() if speed else None
    found = fit_rows_of(run, model, slo_itl_ms, max_batch_size=max_batch_size, speed=curve)
    write_fit(folder, found, model, accelerator)
    if optimizer_url is not None:
        OptimizerApi(optimizer_url).set_perf(found.perf_data(model, accelerator))
    for line in found.lines():
        click.echo(line)


@click.command("predict")
@click.argument("folder", type=RESULTS_FOLDER)
@click.option("--perf", type=click.Path(exists=True, path_type=Path), help="Default: FOLDER's own.")
@click.option("--optimizer", "optimizer_url", required=True)
def predict_run(folder: Path, perf: Path | None, optimizer_url: str) -> None:
    """Compare the optimizer's predictions with the measurements in FOLDER.

    Shows TTFT and ITL of every Poisson load, and writes them to FOLDER/predict.json. Warns of loads
    outside the ranges that were measured for the fit.
    """
    path = perf or folder / PERF_FILE
    data = read_perf(path)
    fitted = read_fit(path.parent)
    validity = fitted.validity if fitted else None
    points = [point for point in load_points(read_run(folder)) if point.load.model == data["name"]]
    found = predict(OptimizerApi(optimizer_url), data, points)
    for line in comparison_lines(found):
        click.echo(line)
    for line in warning_lines(found, validity):
        click.echo(line, err=True)
    if not found:
        raise InvalidResults(f"{folder} holds no open loop with exponential waits to compare")
    text = json.dumps([as_json(beside, validity) for beside in found], indent=1)
    with writing():
        write_whole(folder / PREDICT_FILE, text + "\n")


@click.command("compare")
@click.argument("before", type=RESULTS_FOLDER)
@click.argument("after", type=RESULTS_FOLDER)
def compare_runs(before: Path, after: Path) -> None:
    """Compare two runs.

    Shows the changes of the loads of both, with 95 % intervals. Exit status 1 if anything is worse.
    """
    first, second = read_run(before), read_run(after)
    changes = compare(first, second)
    for change in changes:
        click.echo(_change_line(change))
    for load in unmatched(first, second):
        click.echo(f"in one of the runs only: {load}", err=True)
    if not changes:
        raise InvalidResults(f"{before} and {after} have no load in common")
    if any(change.verdict is Verdict.WORSE for change in changes):
        sys.exit(FAILURES)


@click.command("report")
@click.argument("folder", type=RESULTS_FOLDER)
@click.option("--against", type=RESULTS_FOLDER, help="An earlier run to compare with.")
@slo_options
def report_run(folder: Path, against: Path | None, slo: Slo) -> None:
    """Write FOLDER/report.html, a single self-contained page."""
    from benchmarking.report.page import report_html  # matplotlib takes half a second

    before = read_run(against) if against else None
    page = report_html(read_run(folder), slo, read_fit(folder), before)
    path = folder / "report.html"
    with writing():
        write_whole(path, page)
    click.echo(str(path))


def _only_model(run: Run) -> str:
    models = sorted({row.load.model for row in run.rows})
    if len(models) != 1:
        raise InvalidResults(f"this run holds {', '.join(models)}; choose one with --model")
    return models[0]


def _change_line(change: RowChange) -> str:
    load = change.load
    amount = f"{load.concurrency} users" if load.qps is None else f"{load.qps:.4g}/s"
    relative = change.relative
    bounds = f"[{relative.low:+.1%}, {relative.high:+.1%}]"
    if math.isinf(relative.high):
        bounds = "(too few requests for an interval)"
    percent = f"{relative.value:+.1%} {bounds}"
    return (
        f"{load.model} {load.input_tokens}+{load.output_tokens} {amount}: {change.measure} "
        f"{change.before:.4g} -> {change.after:.4g}, {percent}, {change.verdict}"
    )
