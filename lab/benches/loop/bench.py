"""Serves, measures, fits, asks the optimizer, and checks its predictions: `make bench-loop`.

    python -m lab.benches loop [--model tiny|smollm2|llama] [--runs N]
    python -m lab.benches loop --url http://host:port/v1 [--places 32]

A server is measured in closed loops and, in turn with them, under the Poisson loads to be checked.
An optimizer, asked over HTTP, predicts these loads. The output is a Markdown table of predicted and
measured TTFT, ITL and rates. The exit status is 1 if a prediction missed, and 2 if there is nothing
to compare. A run takes about six minutes, or longer if the host disturbs a virtual machine. Run it
on a machine that does nothing else: client and server share its cores.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from benchmarking.analysis.predict import OptimizerApi
from benchmarking.analysis.search import Shape
from benchmarking.commands.command_line import FAILURES, OK, UNUSABLE
from benchmarking.errors import BenchmarkError
from benchmarking.load.tokenizers import SERVER
from benchmarking.machine import describe_machine
from benchmarking.report.fit_files import write_fit
from benchmarking.report.page import report_html
from benchmarking.rows.config import RowOptions
from benchmarking.rows.driver import Driver
from benchmarking.rows.row_runner import RowRunner
from benchmarking.rows.run_folder import new_run_folder
from lab.benches.loop.figures import LoopResult, result_lines
from lab.benches.loop.plan import LoopPlan, Turns, measure_in_turn
from lab.benches.loop.proof import Measured, prove
from lab.benches.loop.servers import KINDS, Checked, hearth, llama, optimizer, running
from lab.benches.loop.speed_log import Reading, speed_log
from lab.kit.errors import Interrupted
from lab.kit.servers import ROOT, exit_on_sigterm

RESULTS = ROOT / "var" / "bench" / "loop"
SPEEDS_FILE = "speeds.json"  # what the server reported about its steps during the run
READINGS = TypeAdapter(Sequence[Reading])


def main() -> None:
    arguments = parse()
    exit_on_sigterm()
    missed = False
    try:
        for number in range(arguments.runs):
            with server_of(arguments) as server, optimizer() as optimizer_api:
                plan = plan_for(arguments, server, arguments.seed + number, arguments.check_seconds)
                plan = replace(plan, rounds=arguments.rounds)
                result, where = run_loop(server, plan, optimizer_api)
            text = "\n".join(
                [describe_machine("torch", "gunicorn", "numpy"), "", *result_lines(result)]
            )
            (where / "loop.md").write_text(f"{text}\n", encoding="utf-8")
            print(f"\n{text}\n\nthis table, raw files and report in {where}", flush=True)
            missed |= bool(result.misses())
    except BenchmarkError as error:
        print(f"bench-loop: {error}", file=sys.stderr)
        sys.exit(UNUSABLE)
    sys.exit(FAILURES if missed else OK)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check the optimizer against a server.")
    add_server_options(parser)
    parser.add_argument("--runs", type=int, default=1, help="all printed, one after the other")
    parser.add_argument("--rounds", type=int, default=4, help="each with all loads to be checked")
    parser.add_argument("--closed-seconds", type=float, default=2.0, help="of each closed loop")
    parser.add_argument("--check-seconds", type=float, default=12.0, help="of each check")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=[*KINDS], default="tiny", help="served for the bench")
    parser.add_argument("--url", help="of any OpenAI-compatible server instead, as .../v1")
    parser.add_argument("--model-name", help="with --url; default: its first")
    parser.add_argument("--places", type=int, help="with --url: requests it serves at once")
    parser.add_argument("--tokenizer", default=SERVER, help="with --url: folder of tokenizer.json")
    parser.add_argument("--input-tokens", type=int, help="of each prompt; default: by the model")
    parser.add_argument("--output-tokens", type=int)
    parser.add_argument("--max-stolen", type=float, default=0.1, metavar="SHARE",
        help="of a core: a row in which the host took more is measured again")  # fmt: skip


def server_of(arguments: argparse.Namespace) -> AbstractContextManager[Checked]:
    if arguments.url:
        return running(arguments.url, arguments.model_name, arguments.places, arguments.tokenizer)
    return llama() if arguments.model == "llama" else hearth(KINDS[arguments.model])


def shape_of(arguments: argparse.Namespace, server: Checked) -> Shape:
    kind = KINDS[arguments.model]
    return Shape(
        server.model,
        arguments.input_tokens or kind.input_tokens,
        arguments.output_tokens or kind.output_tokens,
    )


def plan_for(arguments: argparse.Namespace, server: Checked, seed: int, check_s: float) -> LoopPlan:
    return LoopPlan(
        shape=shape_of(arguments, server),
        places=server.places,
        closed_s=arguments.closed_seconds,
        check_s=check_s,
        seed=seed,
        max_stolen_share=arguments.max_stolen,
    )


def run_loop(
    server: Checked, plan: LoopPlan, optimizer_api: OptimizerApi, results: Path = RESULTS
) -> tuple[LoopResult, Path]:
    """Runs the loop against a server. Returns the result, and the folder with run, fit and report.

    All prompts begin differently, so that nothing comes from a prefix cache.
    """
    options = RowOptions(tokenizer=server.tokenizer, seed=plan.seed)
    runner = RowRunner(server.target, options)
    folder = new_run_folder(results, runner, sys.argv)
    driver = Driver(runner, folder, print)
    measured = measure(server, measure_in_turn(plan), driver)
    folder.finish()
    result = prove(plan, measured, optimizer_api, server.cuts())
    write_fit(folder.folder, result.fit, plan.shape.model, plan.accelerator)
    page = report_html(driver.run, result.level, result.fit)
    (folder.folder / "report.html").write_text(page, encoding="utf-8")
    return result, folder.folder


def measure(server: Checked, turns: Turns, driver: Driver) -> Measured:
    """Measures the rows, and also keeps the server's own step times in the run's folder. Raises
    Interrupted, Disturbed, RowRefused, InvalidResults and NotWritable."""
    load = next(turns)
    with speed_log(server.speed, driver.runner.origin_s) as readings:
        while True:
            point = driver.measure(load)
            if point is None:
                raise Interrupted
            try:
                load = turns.send(point)
            except StopIteration as end:
                rows = end.value
                break
    (driver.folder.folder / SPEEDS_FILE).write_bytes(READINGS.dump_json(readings))
    return Measured(driver.run, rows, readings)
