"""Measures the optimizer's time, its growth with servers, and greedy's distance from the optimum.

    python -m lab.benches optimizer [--sizes 10,100,1000,10000] [--json FILE]

Every server has its own load and request shape, so no sizing is shared. Times are CPU seconds of
this process, the least of three runs. Run it on an idle machine, because caches are shared, too.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarking.machine import describe_machine
from optimizer.candidates.allocation import Offers, offers
from optimizer.candidates.replicas import SizingCache
from optimizer.inferno_json import decode, encode, read
from optimizer.optimize import SolveOptions, choose_solver, optimize
from optimizer.solver import Problem, Scarcity, Solution
from optimizer.solver.greedy import solve_greedily
from optimizer.solver.milp import MilpOptions, solve_milp
from optimizer.spec import OptimizerSpec, SystemData
from optimizer.system import System

ACCELERATORS = 8
MILP_SERVERS, MILP_GAP, MILP_TIME_LIMIT_S = 500, 0.01, 60.0
SCARCE_SYSTEMS, SCARCE_SERVERS = 50, 30
REPEATS = 3

T = TypeVar("T")


def random_system(servers: int, seed: int, capacity: float) -> dict[str, Any]:
    """Returns a random system with `capacity` cards of each type per server."""
    rng = random.Random(seed)
    types = [f"T{j}" for j in range(ACCELERATORS)]
    models = [f"m{k}" for k in range(10)]
    return {"system": {
        "acceleratorData": {"accelerators": [
            {"name": t, "type": t, "multiplicity": 1, "cost": round(rng.uniform(5, 150), 2),
             "power": {"idle": 100, "full": 400, "midPower": 300, "midUtil": 0.6}}
            for t in types
        ]},
        "modelData": {"models": [_perf(rng, model, t) for model in models for t in types]},
        "serviceClassData": {"serviceClasses": [
            {"name": f"c{p}", "priority": p, "modelTargets": [
                {"model": m, "slo-itl": rng.uniform(20, 100), "slo-ttft": rng.uniform(300, 2000)}
                for m in models
            ]}
            for p in range(1, 5)
        ]},
        "serverData": {"servers": [_server(rng, i, models) for i in range(servers)]},
        "capacityData": {"count": [{"type": t, "count": int(capacity * servers)} for t in types]},
    }}  # fmt: skip


def _perf(rng: random.Random, model: str, accelerator: str) -> dict[str, Any]:
    return {
        "name": model,
        "acc": accelerator,
        "accCount": rng.choice([1, 1, 2, 4]),
        "maxBatchSize": rng.choice([8, 16, 32, 64, 96]),
        "atTokens": rng.choice([256, 512, 1024]),
        "decodeParms": {"alpha": rng.uniform(2, 40), "beta": 10 ** rng.uniform(-2, 0)},
        "prefillParms": {
            "gamma": 10 ** rng.uniform(0, 2.3),
            "delta": 10 ** rng.uniform(-3.5, -1.3),
        },
    }


def _server(rng: random.Random, index: int, models: list[str]) -> dict[str, Any]:
    load = {
        "arrivalRate": rng.uniform(5, 600),
        "avgInTokens": rng.randint(20, 4000),
        "avgOutTokens": rng.randint(20, 1500),
    }
    return {
        "name": f"s{index:05d}",
        "class": f"c{1 + index % 4}",
        "model": rng.choice(models),
        "currentAlloc": {"load": load},
    }


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Returns the least CPU seconds of a few runs, and the result."""
    best, result = float("inf"), None
    for _ in range(REPEATS):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    assert result is not None
    return best, result


@dataclass(frozen=True)
class Phases:
    """CPU seconds of each phase of one request."""

    servers: int
    read: float
    candidates: float
    unlimited: float
    greedy: float
    whole: float  # candidates, greedy, answer
    write: float


def measure(servers: int) -> Phases:
    raw = encode(random_system(servers, seed=1, capacity=1.0)).encode()
    read_s, system = timed(lambda: System.from_spec(read(SystemData, decode(raw)).system))
    candidates_s, found = timed(lambda: offers(system, SizingCache()))
    problem = Problem(found.contenders, system.capacities)
    flags = {"unlimited": OptimizerSpec(unlimited=True), "greedy": OptimizerSpec()}
    options = SolveOptions(SizingCache())
    solve_s = {
        name: timed(lambda flag=flag: choose_solver(flag, options)(problem))[0]  # type: ignore[misc]
        for name, flag in flags.items()
    }
    whole_s, answer = timed(
        lambda: optimize(replace(system, optimizer=flags["greedy"]), SolveOptions(SizingCache()))
    )
    write_s, _ = timed(lambda: encode(answer.dump(answer.desired())))
    return Phases(
        servers, read_s, candidates_s, solve_s["unlimited"], solve_s["greedy"], whole_s, write_s
    )


def offered(servers: int, seed: int, capacity: float) -> tuple[System, Offers]:
    spec = SystemData.model_validate(random_system(servers, seed, capacity)).system
    system = System.from_spec(spec)
    return system, offers(system, SizingCache())


def measure_milp() -> tuple[float, Solution]:
    system, found = offered(MILP_SERVERS, seed=2, capacity=0.6)
    options = MilpOptions(False, MILP_TIME_LIMIT_S, MILP_GAP)
    problem = Problem(found.contenders, system.capacities)
    start = time.process_time()
    solution = solve_milp(problem, Scarcity(), options)
    return time.process_time() - start, solution


@dataclass(frozen=True)
class Scarce:
    """Greedy compared with the optimum on random scarce systems."""

    systems: int
    same_servers: int  # systems in which both serve the same servers
    served_greedy: int
    served_milp: int
    mean_ratio: float  # cost ratio, over the systems with the same servers
    worst_ratio: float


def measure_scarce() -> Scarce:
    served, ratios = [0, 0], []
    for seed in range(SCARCE_SYSTEMS):
        system, found = offered(
            SCARCE_SERVERS, 100 + seed, capacity=random.Random(seed).uniform(0.8, 2.5)
        )
        problem = Problem(found.contenders, system.capacities)
        greedy = solve_greedily(problem, Scarcity())
        exact = solve_milp(problem, Scarcity(), MilpOptions(False, MILP_TIME_LIMIT_S, 0.0))
        served[0] += len(greedy.choices)
        served[1] += len(exact.choices)
        if greedy.choices.keys() == exact.choices.keys() and exact.choices:
            ratios.append(_cost(greedy) / _cost(exact))
    return Scarce(
        SCARCE_SYSTEMS, len(ratios), served[0], served[1], sum(ratios) / len(ratios), max(ratios)
    )


def _cost(solution: Solution) -> float:
    return sum(p.candidate.cost for parts in solution.choices.values() for p in parts)


def report(phases: list[Phases], milp: tuple[float, Solution], scarce: Scarce) -> str:
    lines = [
        describe_machine("numpy", "scipy"),
        "",
        f"CPU seconds, {ACCELERATORS} accelerators, every load different:",
        "",
        "| servers | read | candidates | unlimited | greedy | whole solve | write "
        "| x servers | x whole |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for before, now in zip([None, *phases], phases, strict=False):
        growth = (
            f"{now.servers / before.servers:.0f} | {now.whole / before.whole:.1f}"
            if before
            else " | "
        )
        columns = (now.read, now.candidates, now.unlimited, now.greedy, now.whole, now.write)
        numbers = " | ".join(f"{seconds:.4f}" for seconds in columns)
        lines.append(f"| {now.servers} | {numbers} | {growth} |")
    seconds, solution = milp
    gap = 0.0 if solution.gap is None else solution.gap
    lines += [
        "",
        f"MILP {MILP_SERVERS} x {ACCELERATORS}: {seconds:.2f} s CPU, gap {100 * gap:.3f} %, "
        f"solver {solution.solver}, left out {len(solution.unserved)}",
        f"Greedy beside MILP, {scarce.systems} scarce systems of {SCARCE_SERVERS} servers: serves "
        f"{scarce.served_greedy} to {scarce.served_milp}; where both serve the same "
        f"({scarce.same_servers}) its cost is {scarce.mean_ratio:.4f} times the optimum on "
        f"average, {scarce.worst_ratio:.4f} at worst",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10,100,1000,10000")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    phases = [measure(int(size)) for size in arguments.sizes.split(",")]
    milp, scarce = measure_milp(), measure_scarce()
    print(report(phases, milp, scarce))
    if arguments.json:
        figures = {
            "machine": describe_machine("numpy", "scipy"),
            "phases": [vars(p) for p in phases],
            "milp": {"cpu_s": milp[0], "gap": milp[1].gap, "solver": milp[1].solver},
            "scarce": vars(scarce),
        }
        arguments.json.write_text(json.dumps(figures, indent=2))
