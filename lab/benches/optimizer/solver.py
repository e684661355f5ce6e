"""Compares the solvers for limited cards with the MILP: cost, service and time on random systems.

    python -m lab.benches solver [--sizes 30,500] [--systems 50] [--json FILE]

Cost is compared at equal service: with the MILP for only the servers that the solver serves, or
with the bound that the MILP proves if it stops at a gap. Times are CPU seconds of this process, the
least of three runs, with solvers in turn; the whole solve adds the candidates. The price solver's
constants were chosen on the seeds `tuned` (and on scarcer systems of 30 servers), not `held out`.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarking.machine import describe_machine
from lab.benches.optimizer.bench import offered
from optimizer.candidates.allocation import offers
from optimizer.candidates.replicas import SizingCache
from optimizer.solver import Problem, Scarcity, Solution, Solver
from optimizer.solver.greedy import solve_greedily
from optimizer.solver.milp import MilpOptions, solve_milp
from optimizer.solver.prices import solve_by_prices
from optimizer.system import System

FIRST_SEEDS = {"tuned": 100, "held out": 50_000}
LEAST_CARDS, MOST_CARDS = 0.8, 2.5  # cards of each type, per server
REPEATS = 3
MILP = partial(
    solve_milp,
    scarcity=Scarcity(),
    options=MilpOptions(False, time_limit_s=120.0, relative_gap=1e-4),
)
SOLVERS: Mapping[str, Solver] = {
    "greedy": partial(solve_greedily, scarcity=Scarcity()),
    "prices": partial(solve_by_prices, scarcity=Scarcity()),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One solver on one system."""

    served: int
    serves_as_many: bool  # whether it serves as many of each priority as the MILP
    ratio: float  # cost over the MILP's for the same servers
    cpu_s: float
    whole_cpu_s: float  # includes the candidates


@dataclass(frozen=True, slots=True)
class Comparison:
    """All systems of one size and set of seeds."""

    cases: Mapping[str, list[Case]]  # by solver
    milp_served: int
    milp_cpu_s: float
    widest_gap: float


def compare(servers: int, systems: int, first_seed: int) -> Comparison:
    cases: dict[str, list[Case]] = {name: [] for name in SOLVERS}
    milp_served, milp_cpu_s, widest_gap = 0, 0.0, 0.0
    for number in range(systems):
        cards = random.Random(first_seed - FIRST_SEEDS["tuned"] + number).uniform(
            LEAST_CARDS, MOST_CARDS
        )
        system, found = offered(servers, first_seed + number, cards)
        problem = Problem(found.contenders, system.capacities)
        start_s = time.process_time()
        best = MILP(problem)
        milp_cpu_s += time.process_time() - start_s
        milp_served += len(best.choices)
        times_s = cpu_times(system, problem)
        for name, solver in SOLVERS.items():
            solution = solver(problem)
            bound, gap = least_cost(problem, solution, best)
            widest_gap = max(widest_gap, gap)
            cases[name].append(
                Case(
                    served=len(solution.choices),
                    serves_as_many=by_priority(problem, solution) == by_priority(problem, best),
                    ratio=cost(solution) / bound,
                    cpu_s=times_s[name],
                    whole_cpu_s=times_s["candidates"] + times_s[name],
                )
            )
    return Comparison(cases, milp_served, milp_cpu_s / systems, widest_gap)


def cpu_times(system: System, problem: Problem) -> dict[str, float]:
    """Returns the least CPU seconds of the candidates and of each solver, taken in turn."""
    works: dict[str, Callable[[], object]] = {
        "candidates": lambda: offers(system, SizingCache()),
        **{name: lambda solver=solver: solver(problem) for name, solver in SOLVERS.items()},  # type: ignore[misc]
    }
    least = dict.fromkeys(works, float("inf"))
    for _ in range(REPEATS):
        for name, work in works.items():
            start_s = time.process_time()
            work()
            least[name] = min(least[name], time.process_time() - start_s)
    return least


def least_cost(problem: Problem, solution: Solution, best: Solution) -> tuple[float, float]:
    """Returns the MILP's lower bound for the cost of the servers that are served, and its gap."""
    if solution.choices.keys() != best.choices.keys():
        served = tuple(c for c in problem.contenders if c.server in solution.choices)
        best = MILP(Problem(served, problem.cards))
    assert best.solver == "milp"
    assert best.gap is not None
    assert best.choices.keys() == solution.choices.keys()
    return cost(best) * (1 - best.gap), best.gap


def cost(solution: Solution) -> float:
    return sum(p.candidate.cost for parts in solution.choices.values() for p in parts)


def by_priority(problem: Problem, solution: Solution) -> Counter[int]:
    return Counter(c.priority for c in problem.contenders if c.server in solution.choices)


def rows(servers: int, seeds: str, comparison: Comparison) -> list[str]:
    greedy = comparison.cases["greedy"]
    lines = []
    for name, cases in comparison.cases.items():
        ratios = [case.ratio for case in cases]
        alone = [case.cpu_s / other.cpu_s for case, other in zip(cases, greedy, strict=True)]
        whole = [
            case.whole_cpu_s / other.whole_cpu_s for case, other in zip(cases, greedy, strict=True)
        ]
        columns = (
            f"{servers}, {seeds}",
            name,
            f"{sum(case.served for case in cases)} of {comparison.milp_served}",
            f"{sum(case.serves_as_many for case in cases)} of {len(cases)}",
            f"{fmean(ratios):.4f}",
            f"{max(ratios):.4f}",
            f"{1000 * fmean(case.cpu_s for case in cases):.2f}",
            f"{fmean(alone):.2f}",
            f"{max(alone):.2f}",
            f"{fmean(whole):.3f}",
            f"{max(whole):.3f}",
        )
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def report(comparisons: Mapping[tuple[int, str], Comparison]) -> str:
    lines = [
        describe_machine("numpy", "scipy"),
        "",
        "| servers, seeds | solver | serves of the MILP's | systems with as many | cost: mean "
        "| worst | CPU, ms | x greedy: mean | worst | whole solve x greedy's: mean | worst |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (servers, seeds), comparison in comparisons.items():
        lines += rows(servers, seeds, comparison)
    lines.append("")
    for (servers, seeds), comparison in comparisons.items():
        lines.append(
            f"MILP, {servers} servers, {seeds}: {1000 * comparison.milp_cpu_s:.0f} ms of CPU, "
            f"gap at most {100 * comparison.widest_gap:.3f} %; costs are over its bound"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="30,500")
    parser.add_argument("--systems", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    comparisons = {
        (int(size), seeds): compare(int(size), arguments.systems, first_seed)
        for size in arguments.sizes.split(",")
        for seeds, first_seed in FIRST_SEEDS.items()
    }
    print(report(comparisons))
    if arguments.json:
        figures = {f"{size}, {seeds}": asdict(c) for (size, seeds), c in comparisons.items()}
        arguments.json.write_text(json.dumps(figures, indent=2))
