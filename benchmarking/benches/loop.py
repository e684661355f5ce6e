"""`make bench-loop`: serve, measure, fit, post to the optimizer, and check what it predicts.

The embedded model behind real gunicorn with the optimizer mounted; predicted beside measured TTFT,
ITL and maximum rate, as a table in Markdown. It ends with 1 when an error is larger than allowed,
with 2 when there is nothing to compare. It takes about twelve minutes, up to twice as long where
the host of a virtual machine disturbs it. Run it on a machine that does nothing else: client and
server share its cores, in the sweep and in the check alike.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from benchmarking.analysis.predict import Optimizer
from benchmarking.analysis.search import Shape
from benchmarking.benches.loop_proof import LoopPlan, LoopResult, close_loop, result_lines
from benchmarking.commands.command_line import FAILURES, OK, UNUSABLE
from benchmarking.errors import BenchmarkError
from benchmarking.load.targets import Target
from benchmarking.machine import describe_machine
from benchmarking.report.fit_files import write_fit
from benchmarking.report.page import report_html
from benchmarking.rows.driver import Driver, new_run_folder
from benchmarking.rows.row_runner import Origin, RowOptions, RowRunner
from benchmarking.serving import ServedApi, exit_on_sigterm, served

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "var" / "bench" / "loop"
MODEL = ROOT / "models" / "hearth-tiny"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the optimizer against the server.")
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=96)
    parser.add_argument("--sweep-seconds", type=float, default=10.0, help="of each of 18 rows")
    parser.add_argument("--check-seconds", type=float, default=15.0, help="of each of 30 rows")
    parser.add_argument("--max-stolen", type=float, default=0.1, metavar="SHARE",
        help="of a core: a row in which the host took more is measured again")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    exit_on_sigterm()
    try:
        result, where = serve_and_run(given)
    except BenchmarkError as error:
        print(f"bench-loop: {error}", file=sys.stderr)
        sys.exit(UNUSABLE)
    machine = describe_machine("torch", "gunicorn", "numpy", "scipy")
    text = "\n".join([machine, "", *result_lines(result), ""])
    (where / "loop.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nthis table, raw files and report in {where}")
    sys.exit(FAILURES if result.misses() else OK)


def serve_and_run(given: argparse.Namespace) -> tuple[LoopResult, Path]:
    with TemporaryDirectory() as folder:
        store = Path(folder) / "optimizer.db"
        settings: dict[str, Any] = {"OPTIMIZER_STATEFUL": True, "OPTIMIZER_STORE_PATH": store}
        with served(Path(folder) / "log", **settings) as api:
            state = api.state()
            plan = LoopPlan(
                shape=Shape(state["model"], given.input_tokens, given.output_tokens),
                users=2 * state["user_rows"],
                sweep_s=given.sweep_seconds,
                check_s=given.check_seconds,
                seed=given.seed,
                max_stolen_share=given.max_stolen,
            )
            found = run_loop(api, plan, str(MODEL))
            api.stop()
    return found


def run_loop(
    api: ServedApi, plan: LoopPlan, tokenizer: str, results: Path = RESULTS
) -> tuple[LoopResult, Path]:
    """The loop against a served API, and the folder that holds its run, its fit and its report.

    Prompts have a beginning of their own each, so that nothing comes from a prefix cache.
    """
    target = Target("openai", f"{api.url}/v1")
    options = RowOptions(tokenizer=tokenizer, seed=plan.seed)
    runner = RowRunner(target, options, Origin.now())
    folder = new_run_folder(results, runner, sys.argv, {})
    driver = Driver(runner, folder, Event(), print)
    result = close_loop(plan, driver, Optimizer(api.url), print)
    folder.finish()
    write_fit(folder.folder, result.fit, plan.shape.model, plan.accelerator)
    page = report_html(driver.run, result.slo, result.fit)
    (folder.folder / "report.html").write_text(page, encoding="utf-8")
    return result, folder.folder


if __name__ == "__main__":
    main()
