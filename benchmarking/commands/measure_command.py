"""One line for any server: measured, reported and judged."""

from typing import Any

import click

from benchmarking.analysis.curve import load_points
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.search import Shape, sweep_rate
from benchmarking.analysis.verdict import verdict
from benchmarking.commands.command_line import SECONDS, slo_options
from benchmarking.commands.load_commands import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    Asked,
    asking,
    target_at,
)
from benchmarking.load.preflight import only_model
from benchmarking.records import Run
from benchmarking.report.page import report_html
from benchmarking.rows.driver import Driver

SHARES = (0.25, 0.5, 0.7, 0.85, 0.95)  # of what the closed loop gets
USUAL = Slo(ttft_ms=500, itl_ms=50)


@click.command()
@click.argument("base", metavar="URL")
@click.option("--model", help="Default: the only one that the server has.")
@INPUT_TOKENS
@OUTPUT_TOKENS
@click.option("--max-concurrency", type=click.IntRange(1), default=32, show_default=True)
@click.option("--seconds", type=SECONDS, default=20.0, show_default=True, help="Per row.")
@slo_options
@asking
def measure(
    base: str,
    model: str | None,
    max_concurrency: int,
    seconds: float,
    slo: Slo,
    asked: Asked,
    **lengths: Any,
) -> None:
    """Measure the server at URL, for example http://127.0.0.1:8000/v1. Same as URL alone.

    A closed loop finds the server's capacity, then open loops at shares of it show the latencies
    that users see. The report begins with a verdict on the SLOs (default: TTFT 500 ms, ITL 50 ms).
    Set BENCHMARK_API_KEY if the server needs a key.
    """
    slo = USUAL if slo == Slo() else slo
    model = model or only_model(target_at(base))
    plan = sweep_rate(Shape(model, **lengths), max_concurrency, SHARES, seconds)

    def work(driver: Driver) -> Run:
        driver.drive(plan)
        return driver.run

    run = asked.measure([model], work, base)
    page = asked.output_dir / run.name / "report.html"
    page.write_text(report_html(run, slo), encoding="utf-8")
    click.echo(f"report in {page}")
    click.echo(verdict(load_points(run), slo) or "nothing was measured")
