"""Compares the optimizer's simulator with the real server under random loads: `make bench-truth`.

    python -m lab.benches truth [--model tiny|smollm2|llama] [--loads 20] [--seed 1]

Rates, lengths, their spreads and the burstiness of arrivals are random. The service curve is fitted
to closed loops measured in turn with the loads, as in `bench-loop`. Then the optimizer simulates
exactly the requests that came, at the speed of their moment. The output is the simulated and the
measured mean TTFT and ITL of every load. ITL is a mean over tokens. The exit status is 1 if a mean
is off by more than 10 %, and 2 if there is nothing to compare.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from benchmarking.analysis.curve import LoadPoint
from benchmarking.analysis.latency import TTFT, output_tokens, succeeded
from benchmarking.analysis.predict import OptimizerApi
from benchmarking.analysis.service_curve import ServiceCurve
from benchmarking.commands.command_line import FAILURES, OK, UNUSABLE
from benchmarking.errors import BenchmarkError
from benchmarking.machine import describe_machine
from benchmarking.records import Workload
from benchmarking.rows.config import RowOptions
from benchmarking.rows.driver import Driver
from benchmarking.rows.row_runner import RowRunner
from benchmarking.rows.run_folder import new_run_folder
from lab.benches.loop.bench import add_server_options, measure, plan_for, server_of
from lab.benches.loop.plan import LoopPlan, measure_in_turn
from lab.benches.loop.proof import Predictor, fitted
from lab.benches.loop.servers import Checked, optimizer
from lab.kit.moments import SpeedOfMoments
from lab.kit.servers import ROOT, exit_on_sigterm

RESULTS = ROOT / "var" / "bench" / "truth"
ALLOWED = 0.10
SHARES = (0.2, 0.8)  # rates over the approximate capacity
LENGTHS = (0.5, 1.5)  # mean tokens over the usual ones
SPREADS = (0.0, 0.25, 1.0)  # squared coefficients of variation of lengths
BURSTS = (0.5, 1.0, 2.0, 4.0)  # squared coefficients of variation of gaps between arrivals
PROMPT_TOKEN = 0.3  # a prompt token's time over an output token's, to estimate a shape's capacity
IN_A_ROUND = 4


@dataclass(frozen=True, slots=True)
class Simulated:
    """A load's TTFT and ITL in ms: simulated, as (low, value, high), and measured."""

    load: Workload
    method: str
    ttft_ms: tuple[float, float, float]
    itl_ms: tuple[float, float, float]
    measured_ttft_ms: float
    measured_itl_ms: float

    @property
    def errors(self) -> tuple[float, float]:
        """Returns the errors of TTFT and ITL relative to the measurements."""
        return (
            self.ttft_ms[1] / self.measured_ttft_ms - 1,
            self.itl_ms[1] / self.measured_itl_ms - 1,
        )


def random_loads(plan: LoopPlan, count: int, capacity_per_s: float) -> list[Workload]:
    """Returns loads of `plan.check_s` each, at shares of their shapes' approximate capacities."""
    rng = Random(f"{plan.seed} loads")
    usual = plan.shape
    loads = []
    for _ in range(count):
        shape = replace(
            usual,
            input_tokens=round(usual.input_tokens * rng.uniform(*LENGTHS)),
            output_tokens=round(usual.output_tokens * rng.uniform(*LENGTHS)),
        )
        capacity = capacity_per_s * _work(usual.input_tokens, usual.output_tokens)
        capacity /= _work(shape.input_tokens, shape.output_tokens)
        load = shape.at_rate(rng.uniform(*SHARES) * capacity, plan.check_s)
        loads.append(
            replace(
                load,
                input_scv=rng.choice(SPREADS),
                output_scv=rng.choice(SPREADS),
                arrival_scv=rng.choice(BURSTS),
            )
        )
    return loads


def _work(input_tokens: int, output_tokens: int) -> float:
    return PROMPT_TOKEN * input_tokens + output_tokens


def rounds_of(loads: Sequence[Workload]) -> list[Sequence[Workload]]:
    return [loads[start : start + IN_A_ROUND] for start in range(0, len(loads), IN_A_ROUND)]


def simulated(predictor: Predictor, point: LoadPoint, curve: ServiceCurve) -> Simulated:
    """Simulates a load. Raises OptimizerUnusable."""
    prediction = predictor.predict_requests(point, curve)
    answered = succeeded(point.measured)
    gaps = [output_tokens(record) - 1 for record in answered]
    decode_s = [record.chunk_s[-1] - record.chunk_s[0] for record in answered]
    ttft_low, ttft_high = prediction.ttft_bounds_ms or (math.nan, math.nan)
    itl_low, itl_high = prediction.itl_bounds_ms or (math.nan, math.nan)
    return Simulated(
        load=point.load,
        method=prediction.method or "lines",
        ttft_ms=(ttft_low, prediction.ttft_ms, ttft_high),
        itl_ms=(itl_low, prediction.itl_ms, itl_high),
        measured_ttft_ms=float(np.mean(TTFT.values(point.measured))),
        measured_itl_ms=1000 * sum(decode_s) / sum(gaps),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the simulator against a server.")
    add_server_options(parser)
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--load-seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--closed-seconds", type=float, default=1.5, help="of each closed loop")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    exit_on_sigterm()
    try:
        with server_of(arguments) as server, optimizer() as optimizer_api:
            plan = plan_for(arguments, server, arguments.seed, arguments.load_seconds)
            found, speeds, where = run_truth(server, plan, arguments.loads, optimizer_api)
    except BenchmarkError as error:
        print(f"bench-truth: {error}", file=sys.stderr)
        sys.exit(UNUSABLE)
    text = "\n".join([describe_machine("torch", "gunicorn", "numpy"), "", *lines(found, speeds)])
    (where / "truth.md").write_text(f"{text}\n", encoding="utf-8")
    print(f"\n{text}\n\nthis table and raw files in {where}")
    sys.exit(FAILURES if any(is_missed(one) for one in found) else OK)


def run_truth(
    server: Checked,
    plan: LoopPlan,
    num_loads: int,
    optimizer_api: OptimizerApi,
    results: Path = RESULTS,
) -> tuple[list[Simulated], SpeedOfMoments, Path]:
    """Returns all loads simulated and measured, the machine's speeds, and the run's folder."""
    options = RowOptions(tokenizer=server.tokenizer, seed=plan.seed)
    runner = RowRunner(server.target, options)
    folder = new_run_folder(results, runner, sys.argv)
    driver = Driver(runner, folder, print)

    def loads(capacity_per_s: float) -> list[tuple[Workload, bool]]:
        return plan.in_turn(rounds_of(random_loads(plan, num_loads, capacity_per_s)))

    measured = measure(server, measure_in_turn(plan, loads), driver)
    folder.finish()
    known = fitted(plan, measured, optimizer_api, server.cuts())
    points = [measured.rows.points[row] for row in measured.rows.checked]
    found = [simulated(known.predictor, *known.at_moments([point])[0]) for point in points]
    return found, known.moments.speeds, folder.folder


def is_missed(one: Simulated) -> bool:
    return any(abs(error) > ALLOWED for error in one.errors)


def lines(found: Sequence[Simulated], speeds: SpeedOfMoments) -> Iterator[str]:
    """Yields a row for each load. Errors are (simulated - measured) / measured."""
    yield f"- {speeds.line()}"
    yield ""
    yield (
        "| requests/s | spread of waits | prompts, spread | answers, spread | TTFT, ms "
        "| measured | error | ITL, ms | measured | error |"
    )
    yield "|" + "---|" * 10
    for one in found:
        load = one.load
        ttft_error, itl_error = one.errors
        yield (
            f"| {load.qps:.2f} | {load.arrival_scv:g} | {load.input_tokens}, {load.input_scv:g} "
            f"| {load.output_tokens}, {load.output_scv:g} "
            f"| {_interval(one.ttft_ms)} | {one.measured_ttft_ms:.4g} | {ttft_error:+.1%} "
            f"| {_interval(one.itl_ms)} | {one.measured_itl_ms:.4g} | {itl_error:+.1%} |"
        )
    yield ""
    for name, which in (("TTFT", 0), ("ITL", 1)):
        sizes = [abs(one.errors[which]) for one in found]
        within = sum(size <= ALLOWED for size in sizes)
        yield (
            f"{name}: median error {np.median(sizes):.1%}, {within} of {len(sizes)} within "
            f"{ALLOWED:.0%}."
        )


def _interval(bounds: tuple[float, float, float]) -> str:
    low, value, high = bounds
    return f"{value:.4g} [{low:.4g}, {high:.4g}]"
