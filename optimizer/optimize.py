"""Solves a system: candidates, solver, best-effort latencies, stabilisation, totals.

Pure, except for the sizing cache it is given: any thread.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from optimizer.answer import Allocation, Answer, TypeUse, shortest
from optimizer.candidates.allocation import Offers, offers
from optimizer.candidates.replicas import SizingCache
from optimizer.solver import Candidate, Problem, Scarcity, Solution, Solver, SolverChoice
from optimizer.solver.greedy import solve_greedily, solve_unlimited
from optimizer.solver.prices import solve_by_prices
from optimizer.solver.saturation import Stock
from optimizer.spec import OptimizerSpec
from optimizer.stabilize import BY_FLAGS, Stability, stabilize
from optimizer.system import System

NO_CPLEX = "CPLEX is not available here; HiGHS solved it instead"
NO_HOLD = (
    "holdMinutes did nothing: it needs to know when servers last changed, which /optimize and "
    "/optimizeOne of a stateful optimizer (-F) alone do"
)


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """Options that the process sets, not the request."""

    cache: SizingCache
    milp_time_limit_s: float = 10.0
    milp_relative_gap: float = 1e-3


def optimize(system: System, options: SolveOptions, stability: Stability = BY_FLAGS) -> Answer:
    """Returns the allocation of every server that can have one, and reasons for the others."""
    flags = system.optimizer
    offered = offers(system, options.cache)
    held = {name: fault.running for name, fault in offered.load_faults.items() if fault.running}
    left = Stock(system.capacities, chain.from_iterable(held.values())).cards
    cards = {card_type: max(count, 0) for card_type, count in left.items()}
    solution = choose_solver(flags, options)(Problem(offered.contenders, cards))
    solution = replace(solution, choices={**solution.choices, **held})
    solution, kept = stabilize(system, offered, solution, stability)
    allocations = dict(_allocations(system, offered, solution))
    for server in (*kept, *held):
        allocations[server] = replace(allocations[server], is_kept=True)
    refusals = {server: refusal.message for server, refusal in offered.refused_servers.items()}
    return Answer(
        allocations=allocations,
        unallocated={**refusals, **solution.unserved},
        load_faults={name: fault.message for name, fault in offered.load_faults.items()},
        solver=solution.solver,
        notes=tuple(_notes(flags, solution, stability)),
        gap=solution.gap,
        card_use=_card_use(system, allocations.values()),
    )


def choose_solver(flags: OptimizerSpec, options: SolveOptions) -> Solver:
    """Returns the solver that the flags select. `unlimited` overrides `milpSolver`, as in the
    reference, and `milpSolver` overrides `priceSolver`."""
    scarcity = Scarcity(flags.saturation_policy, flags.delayed_best_effort)
    if flags.unlimited:
        return solve_unlimited
    if flags.milp_solver:
        # scipy.optimize is slow to import, so it is imported only for this solver.
        from optimizer.solver.milp import MilpOptions, solve_milp

        limits = MilpOptions(
            flags.heterogeneous, options.milp_time_limit_s, options.milp_relative_gap
        )
        return partial(solve_milp, scarcity=scarcity, options=limits)
    if flags.price_solver:
        return partial(solve_by_prices, scarcity=scarcity)
    return partial(solve_greedily, scarcity=scarcity)


def _notes(flags: OptimizerSpec, solution: Solution, stability: Stability) -> Iterable[str]:
    if flags.use_cplex and flags.milp_solver and not flags.unlimited:
        yield NO_CPLEX
    if stability.changed_at_s is None and stability.hold_minutes_of(flags):
        yield NO_HOLD
    yield from solution.notes


def _allocations(
    system: System, offered: Offers, solution: Solution
) -> Iterable[tuple[str, Allocation]]:
    """Yields the allocations by server name, in the order the servers were given."""
    demand_per_s = dict.fromkeys(solution.choices, 0.0)
    demand_per_s |= {contender.server: contender.demand_per_s for contender in offered.contenders}
    choices = _reanalyzed(offered, demand_per_s, solution.choices)
    for name, server in system.servers.items():
        if name in choices:
            parts = choices[name]
            powers = tuple(_power_w(system, server.model, part) for part in parts)
            yield name, Allocation(server, parts, demand_per_s[name], powers)


def _power_w(system: System, model: str, part: SolverChoice) -> float:
    accelerator = system.accelerators.get(part.candidate.accelerator)
    if accelerator is None:
        return 0.0
    units = part.replicas * system.units(model, accelerator.name)
    return units * accelerator.power.watts(part.candidate.utilization)


def _reanalyzed(
    offered: Offers,
    demand_per_s: Mapping[str, float],
    choices: Mapping[str, tuple[SolverChoice, ...]],
) -> dict[str, tuple[SolverChoice, ...]]:
    """Returns the choices with latencies at the load that their replicas really get.

    A candidate's own latencies hold for all its replicas. Fewer replicas take the same load, and
    are overloaded. Parts of a heterogeneous allocation share the load in proportion to their
    highest rates.
    """
    changed: list[tuple[str, int, Candidate]] = []
    rates_per_ms = []
    for name, parts in choices.items():
        if demand_per_s[name] == 0 or (len(parts) == 1 and parts[0].is_exact):
            continue
        able_per_s = sum(part.replicas * part.candidate.max_rate_per_s for part in parts)
        for index, part in enumerate(parts):
            changed.append((name, index, part.candidate))
            share = part.candidate.max_rate_per_s / able_per_s
            rates_per_ms.append(demand_per_s[name] * share / 1000)
    rows = np.array([candidate.row for _, _, candidate in changed], dtype=np.int64)
    found = offered.pairs.replica.take(rows).analyze(np.array(rates_per_ms))
    result = dict(choices)
    for row, (name, index, candidate) in enumerate(changed):
        parts = result[name]
        at_load = candidate._replace(
            itl_ms=float(found.itl_ms[row]),
            ttft_ms=float(found.ttft_ms[row]),
            utilization=float(found.utilization[row]),
            loss=float(found.loss[row]),
        )
        renewed = parts[index]._replace(candidate=at_load)
        result[name] = (*parts[:index], renewed, *parts[index + 1 :])
    return result


def _card_use(system: System, allocations: Iterable[Allocation]) -> list[TypeUse]:
    """Returns cards and cost by type, for every type that is used or limited."""
    cards: dict[str, int] = dict.fromkeys(system.capacities, 0)
    cost: dict[str, float] = dict.fromkeys(system.capacities, 0.0)
    for allocation in allocations:
        for part, part_cost in zip(allocation.parts, allocation.part_costs, strict=True):
            if part.replicas:
                card_type = part.candidate.card_type
                cards[card_type] = cards.get(card_type, 0) + part.cards
                cost[card_type] = cost.get(card_type, 0.0) + part_cost
    return [
        {
            "type": card_type,
            "count": count,
            "limit": system.capacities.get(card_type, 0),
            "cost": shortest(cost[card_type]),
        }
        for card_type, count in sorted(cards.items())
    ]
