"""The commands that measure. They take loads from their arguments, or from what they measured."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from tqdm import tqdm

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.goodput import Slo
from benchmarking.analysis.knee import MIN_LATENCIES, MIN_REQUESTS, Saturation, knee
from benchmarking.analysis.remarks import nothing_answered
from benchmarking.analysis.search import (
    Shape,
    SweepEnd,
    search_max_rate,
    sweep_concurrency,
    sweep_rate,
)
from benchmarking.analysis.switching import Matrix, rotation, switching_matrix
from benchmarking.commands.command_line import (
    FAILURES,
    HEADERS,
    INTERRUPTED,
    RESULTS_FOLDER,
    SECONDS,
    FiniteRange,
    is_given,
    shown_argv,
    slo_options,
    until_interrupted,
)
from benchmarking.errors import TargetUnusable
from benchmarking.load.preflight import agreed, unserved
from benchmarking.load.progress import RunProgress
from benchmarking.load.targets import Endpoint, Headers
from benchmarking.load.tokenizers import SERVER
from benchmarking.load.user_prompts import load_of
from benchmarking.records import MAX_REQUESTS, MAX_SEED, MAX_TOKENS, MAX_USERS, Run, Workload
from benchmarking.rows.config import RowOptions
from benchmarking.rows.driver import Driver
from benchmarking.rows.row_runner import RowRunner
from benchmarking.rows.run_folder import new_run_folder
from benchmarking.run_files import read_run
from benchmarking.settings import load_settings

SWEEP_SHARES = (*(share / 10 for share in range(1, 13)), 1.5)
TOKENS, USERS = click.IntRange(1, MAX_TOKENS), click.IntRange(1, MAX_USERS)
TIMES = click.IntRange(1, 1000)
MODEL = click.option("--model", required=True)
OUTPUT_TOKENS = click.option("--output-tokens", type=TOKENS, default=64, show_default=True)
INPUT_TOKENS = click.option("--input-tokens", type=TOKENS, default=128, show_default=True)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The arguments that all of these commands take."""

    output_dir: Path
    tokenizer: str
    seed: int
    headers: Headers

    def like(self, earlier: Run) -> "LoadOptions":
        """Returns the arguments with the seed and tokenizer of an earlier run, unless the command
        line gives them."""
        options: dict[str, Any] = {"seed": earlier.seed, "tokenizer": earlier.environment.tokenizer}
        return replace(self, **{name: options[name] for name in options if not is_given(name)})

    def measure(
        self,
        models: Iterable[str],
        work: Callable[[Driver], T],
        base: str | None = None,
        num_rows: int | None = None,
    ) -> T:
        """Does `work` with a driver until it ends or the user stops it, and says where files are.

        `base` replaces BENCHMARK_API_BASE. `num_rows` is the largest possible number, if known.
        Raises TargetUnusable if the server does not serve all `models`.
        """
        models, target = list(models), self.target_at(base)
        if faults := unserved(target, models):
            raise TargetUnusable("\n".join(faults.values()))
        target = agreed(target, models[0], tqdm.write)
        options = RowOptions(tokenizer=self.tokenizer, seed=self.seed)
        runner = RowRunner(target, options)
        folder = new_run_folder(self.output_dir, runner, shown_argv())
        try:
            with closing(RunProgress(num_rows)) as progress:
                driver = Driver(runner, folder, tqdm.write, progress)
                found = until_interrupted(lambda: work(driver), driver.stop)
        finally:
            folder.finish()
            click.echo(f"results in {folder.folder}")
        if driver.stop.is_set():
            sys.exit(INTERRUPTED)
        return found

    def target_at(self, base: str | None) -> Endpoint:
        settings = load_settings()
        base = base or settings.api_base
        return Endpoint("openai", base, settings.api_key, user_headers=self.headers)


def load_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `LoadOptions`, which the command gets. The server's address and key come
    from BENCHMARK_API_BASE and BENCHMARK_API_KEY."""

    @wraps(command)
    def with_options(
        output_dir: Path, tokenizer: str, seed: int, headers: Headers, **arguments: Any
    ) -> None:
        command(options=LoadOptions(output_dir, tokenizer, seed, headers), **arguments)

    for option in (
        HEADERS,
        click.option(
            "--output-dir",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("var/benchmarks"),
            show_default=True,
        ),
        click.option(
            "--tokenizer",
            default=SERVER,
            show_default=True,
            help="Or a folder with tokenizer.json.",
        ),
        click.option("--seed", type=click.IntRange(0, MAX_SEED), default=0, show_default=True),
    ):
        with_options = option(with_options)
    return with_options


@click.command()
@MODEL
@click.option(
    "--input-tokens",
    "lengths",
    type=TOKENS,
    multiple=True,
    default=(128,),
    show_default=True,
    help="May be repeated.",
)
@OUTPUT_TOKENS
@click.option("--by", type=click.Choice(["concurrency", "rate"]), default="rate", show_default=True)
@click.option("--max-concurrency", type=USERS, default=64, show_default=True)
@click.option("--seconds", type=SECONDS, default=30.0, show_default=True, help="Per row.")
@click.option("--requests-each", type=TIMES, default=8, show_default=True)
@click.option("--repeats", type=TIMES, default=1, show_default=True)
@load_options
def sweep(
    model: str,
    lengths: tuple[int, ...],
    output_tokens: int,
    by: str,
    max_concurrency: int,
    seconds: float,
    requests_each: int,
    repeats: int,
    options: LoadOptions,
) -> None:
    """Raise the load until the server is saturated, and find the knee.

    By concurrency, it tries 1, 2, 4, ... users. By rate, it tries Poisson arrivals at shares of the
    rate that --max-concurrency users reach.
    """

    ends: dict[int, SweepEnd | None] = {}

    def work(driver: Driver) -> list[LoadPoint]:
        for length in lengths:
            shape = Shape(model, length, output_tokens)
            if by == "rate":
                plan = sweep_rate(shape, max_concurrency, SWEEP_SHARES, seconds)
            else:
                plan = sweep_concurrency(shape, max_concurrency, requests_each)
            ends[length] = driver.drive(plan)
        driver.measure_all([row.load for row in driver.run.rows] * (repeats - 1))
        return driver.points()

    points = options.measure([model], work)
    for length, end in ends.items():
        of_length = [point for point in points if point.load.input_tokens == length]
        bend = knee(of_length)
        if bend is None:
            why = nothing_answered([r for point in of_length for r in point.all_records])
            click.echo(f"{length} input tokens: {why}", err=True)
            sys.exit(FAILURES)
        click.echo(f"{length} input tokens, knee: {_described(bend)}")
        for line in _end_lines(end):
            click.echo(f"{length} input tokens, {line}")


@click.command()
@MODEL
@click.option("--attainment", type=FiniteRange(0, 1, min_open=True), default=0.95)
@click.option("--start-qps", type=FiniteRange(0, 1e5, min_open=True), default=1.0)
@INPUT_TOKENS
@OUTPUT_TOKENS
@click.option("--seconds", type=SECONDS, default=60.0, show_default=True, help="Per row.")
@slo_options
@load_options
def capacity(
    attainment: float,
    start_qps: float,
    seconds: float,
    slo: Slo,
    options: LoadOptions,
    **shape: Any,
) -> None:
    """Find the highest rate that meets the SLOs.

    A rate meets them if at least the share --attainment of its requests does; a request that fails
    does not. Exit status 1 if no rate meets them, or every rate does.
    """

    def is_met(point: LoadPoint) -> bool:
        return point.goodput(slo).attainment >= attainment

    plan = search_max_rate(Shape(**shape), is_met, start_qps, seconds)
    found = options.measure([shape["model"]], lambda driver: driver.drive(plan))
    met, missed = found or (None, None)
    if met is None or missed is None:
        click.echo(f"no limit was found for {slo}", err=True)
        sys.exit(FAILURES)
    click.echo(f"{slo} by {attainment:.1%} of requests: {_described(met)}")
    click.echo(f"no more at {missed.offered_per_s:.3f} requests/s")


@click.command()
@click.argument(
    "prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PROMPTS.JSONL"
)
@MODEL
@click.option("--concurrency", type=USERS, default=1, show_default=True)
@OUTPUT_TOKENS
@click.option("--save-texts", is_flag=True, help="Also write prompts and completions.")
@load_options
def custom(
    prompts: Path,
    model: str,
    concurrency: int,
    output_tokens: int,
    save_texts: bool,
    options: LoadOptions,
) -> None:
    """Send your own prompts, each once.

    A line is {"prompt": "..."}, with "image_path" if there is a picture. The warm-up sends other
    prompts of about the same length, so that no cache has yours.
    """
    load = load_of(prompts, model, output_tokens, concurrency)
    point = options.measure([model], lambda driver: driver.measure(load, save_texts), num_rows=1)
    if point is None or point.error_share > 0:
        sys.exit(FAILURES)


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option(
    "--requests", "num_requests", type=click.IntRange(3, MAX_REQUESTS), default=6, show_default=True
)
@click.option("--laps", type=TIMES, default=3, show_default=True)
@INPUT_TOKENS
@OUTPUT_TOKENS
@load_options
def switching(
    models: tuple[str, ...],
    num_requests: int,
    laps: int,
    input_tokens: int,
    output_tokens: int,
    options: LoadOptions,
) -> None:
    """Measure how long switching between MODELS takes.

    It goes from each model to each other, with one request at a time: the first of a visit waits
    for the switch, the others show what is usual. The first visit to each model is warm-up.
    """
    if len(set(models)) < 2:
        raise click.UsageError("name at least two models to switch between")

    loads = [
        Workload(model, input_tokens, output_tokens, num_requests, concurrency=1)
        for model in rotation(models, laps)
    ]

    def work(driver: Driver) -> Matrix:
        driver.measure_all(loads)
        return switching_matrix(driver.run)

    found = options.measure(models, work, num_rows=len(loads))
    for (before, after), switches in sorted(found.items()):
        reported, estimate = _seconds(switches.by_server_s), _seconds(switches.by_estimate_s)
        click.echo(f"{before} to {after}: server {reported}, estimate {estimate}")


@click.command()
@click.argument("folder", type=RESULTS_FOLDER)
@load_options
def repeat(folder: Path, options: LoadOptions) -> None:
    """Measure the loads of FOLDER again with its seed and tokenizer, for a comparison."""
    run = read_run(folder)
    loads = [row.load for row in run.rows]
    models = [load.model for load in loads]
    options.like(run).measure(models, lambda driver: driver.measure_all(loads), num_rows=len(loads))


def _end_lines(end: SweepEnd | None) -> Iterator[str]:
    if end is None or end.saturated is None:
        yield "not saturated by any of these loads"
    else:
        yield f"saturated: {_described(end.saturated)}"
    if end is not None and end.too_short:
        rates = ", ".join(f"{point.load.qps:.3g}" for point in end.too_short)
        yield (
            f"{Saturation.TOO_SHORT} at {rates} requests/s: it takes {MIN_REQUESTS} requests and "
            f"{MIN_LATENCIES} times their latency; raise --seconds"
        )


def _seconds(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3f} s" if values else "says nothing"


def _described(point: LoadPoint) -> str:
    ttft = f", TTFT {point.ttft.mean} ms" if point.ttft else ""
    itl = f", ITL {point.itl.mean} ms" if point.itl else ""
    return (
        f"{point.throughput_per_s:.3f} requests/s, {point.tokens_per_s:.1f} tokens/s, "
        f"{point.in_flight:.1f} in flight{ttft}{itl}"
    )
