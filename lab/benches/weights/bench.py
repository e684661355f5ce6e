"""Compares the weights samplers with public optimisers, by trials, not time: `make bench-weights`.

Objectives, all to be maximised, with NOISE of 5 % except for the first:
- sse: 1 / squared distance to a random optimum, exact;
- pipe: pipelined tokens/s, 1 / max_i(w_i L / s_i + c_i), random speeds, latencies and caps;
- tight: the same with caps that sum to 1.25;
- sum: single-stream tokens/s, 1 / sum_i(w_i L / s_i + c_i), random caps: the optimum is a corner;
- layers: pipe without caps, where only splits of 32 whole layers exist;
- cliff: stages that are not linear, for which no model here was made.

The figure is the median over seeds of the regret of the weights reported best after some number of
trials. The regret is the distance to the optimum for sse, and else the relative loss of the
noise-free value. The public optimisers run in a virtual environment under var/, made by the first
run; they and the classic method report the best value seen. Results of earlier runs stay in the
JSON file and in the table. Below the table are our cells that are above the best of the others: the
difference of the medians with its 95 % interval, and whether that is within the noise of the seeds.

Set OMP_NUM_THREADS=1: the matrices are small, and on a busy machine BLAS threads wait for each
other many times longer than they compute.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

from benchmarking.analysis.intervals import Interval
from benchmarking.machine import describe_machine
from lab.benches.weights.objectives import Task, make_task
from lab.kit.servers import ROOT
from weights.samplers import SAMPLERS, SamplerName
from weights.samplers.assessment import assess
from weights.search import Observation, Problem, ProposalRequest

RESULTS = ROOT / "var" / "bench" / "weights.json"
PEERS = ROOT / "var" / "bench" / "weights-peers"
PEER_PACKAGES = ("optuna==5.0.0", "cmaes==0.13.1", "scikit-optimize==0.10.2", "numpy==2.4.6")

COLUMNS = (
    *[f"{kind}-{nodes}" for kind in ("sse", "pipe", "sum") for nodes in (2, 4, 8, 16)],
    "tight-8",
    "layers-4",
    "cliff-4",
    "cliff-8",
)
OURS: dict[str, SamplerName] = {"adaptive": "adaptive", "dirichlet_mle": "dirichlet_mle"}
NAMES = {
    "adaptive": "Hearth",
    "dirichlet_mle": "classic Dirichlet",
    "tpe": "Optuna TPE",
    "cma": "Optuna CMA-ES",
    "gp": "scikit-optimize GP",
}
CHECKPOINTS = (25, 50, 100, 200)
GP_TRIALS = 50  # scikit-optimize fits anew at each trial; more would take hours for all columns
RESAMPLES = 2000

Regrets = list[dict[str, float]]  # for each seed, by number of trials


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the weights samplers by trials.")
    parser.add_argument("--methods", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--columns", nargs="*", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--trials", type=int, choices=CHECKPOINTS, default=CHECKPOINTS[-1])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if set(arguments.methods) - set(OURS):
        install_peers()
    results = load(arguments.results)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        runs = {
            pool.submit(run, method, column, arguments.trials, arguments.seeds): (method, column)
            for column in arguments.columns
            for method in arguments.methods
        }
        for done in as_completed(runs):
            method, column = runs[done]
            # Read the file again, because another run may have added to it.
            results = load(arguments.results)
            results.setdefault(column, {})[method] = done.result()
            arguments.results.write_text(json.dumps(results, indent=1))
            print(column, NAMES[method], cell(done.result()), flush=True)
    print(f"\n{describe_machine('numpy', 'scipy')}\n")
    print("\n".join(table(results)))
    print("\nAbove the best of the others:\n")
    print("\n".join(shortfalls(results)) or "- nowhere")


def install_peers() -> None:
    if not (PEERS / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
    subprocess.run(
        [PEERS / "bin" / "python", "-m", "pip", "install", "-q", *PEER_PACKAGES], check=True
    )


def load(path: Path) -> dict[str, dict[str, Regrets]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Regrets]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def run(method: str, column: str, trials: int, seeds: int) -> Regrets:
    kind, _, nodes = column.partition("-")
    if method in OURS:
        return [
            run_ours(method, make_task(kind, int(nodes), seed), trials, seed)
            for seed in range(seeds)
        ]
    trials = min(trials, GP_TRIALS) if method == "gp" else trials
    python = str(PEERS / "bin" / "python")
    command = [python, "-m", "lab.benches.weights.peers", method, kind, nodes]
    completed = subprocess.run(
        [*command, str(trials), *map(str, range(seeds))], cwd=ROOT, capture_output=True, check=True
    )
    return [json.loads(line) for line in completed.stdout.splitlines()]


def run_ours(method: str, task: Task, trials: int, seed: int) -> dict[str, float]:
    sampler = SAMPLERS[OURS[method]]
    nodes = len(task.upper)
    problem = Problem((0.0,) * nodes, tuple(task.upper.tolist()), num_layers=task.num_layers)
    noise, rng = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    observations: list[Observation] = []
    found = {}
    for trial in range(1, trials + 1):
        [proposal] = sampler(ProposalRequest(problem, observations, [], 1, rng))
        metric = task.measure(np.array(proposal.shares), noise)
        observations.append(Observation(proposal.shares, metric))
        if trial in CHECKPOINTS:
            best = reported(method, problem, observations)
            found[str(trial)] = task.regret(np.array(best))
    return found


def reported(method: str, problem: Problem, observations: list[Observation]) -> tuple[float, ...]:
    """Returns the weights that a method reports. The classic method, which does not account for
    noise, reports the best value seen."""
    if method == "dirichlet_mle":
        return max(observations, key=lambda observation: observation.metric).shares
    return assess(problem, observations).best.shares


def after(trials: int, regrets: Regrets) -> list[float]:
    """Returns each seed's regret after `trials`; empty if no run went so far."""
    return [regret[str(trials)] for regret in regrets if str(trials) in regret]


def cell(regrets: Regrets) -> str:
    """Returns medians by number of trials."""
    parts = []
    for trials in CHECKPOINTS:
        values = after(trials, regrets)
        parts.append(f"{median(values):.4f}".lstrip("0") if values else "–")
    return " / ".join(parts)


def table(results: dict[str, dict[str, Regrets]]) -> Iterator[str]:
    """Yields a Markdown table with a row per objective and a column per method."""
    yield "| | " + " | ".join(NAMES.values()) + " |"
    yield "|---" * (len(NAMES) + 1) + "|"
    for column in COLUMNS:
        if column in results:
            cells = [
                cell(results[column][method]) if method in results[column] else ""
                for method in NAMES
            ]
            yield f"| {title(column)} | " + " | ".join(cells) + " |"


def shortfalls(results: dict[str, dict[str, Regrets]]) -> Iterator[str]:
    """Yields a line for each of our medians that is above the least of the others'."""
    for column, trials in product(COLUMNS, CHECKPOINTS):
        found = {m: after(trials, regrets) for m, regrets in results.get(column, {}).items()}
        ours = found.pop("adaptive", [])
        others = {m: values for m, values in found.items() if len(values) == len(ours)}
        if ours and others:
            best = min(others, key=lambda method: median(others[method]))
            above = difference(ours, others[best])
            if above.value > 0.0:
                noise = "beyond" if above.low > 0.0 else "within"
                yield (
                    f"- {title(column)} after {trials} trials: {above} above {NAMES[best]}, "
                    f"{noise} the noise"
                )


def difference(ours: Sequence[float], others: Sequence[float]) -> Interval:
    """Returns the difference of medians, by bootstrap over the seeds, which all methods share."""
    chosen = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
    resampled = np.median(np.array([ours, others])[:, chosen], axis=2)
    low, high = np.quantile(resampled[0] - resampled[1], (0.025, 0.975))
    return Interval(median(ours) - median(others), float(low), float(high))


def title(column: str) -> str:
    kind, _, nodes = column.partition("-")
    return f"{kind}, {nodes} nodes"
