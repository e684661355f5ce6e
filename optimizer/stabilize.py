"""Keeps running allocations if a change would gain little, or if they changed just before.

A change of replicas or accelerator costs a cold start, so an optimizer that runs every minute must
not follow every small change of the load. A server keeps its allocation if that still meets its
service levels and fits the cards, and if the change would save less than `minGainPercent` of its
cost, or its last change is less than `holdMinutes` ago. An allocation that no longer suffices
changes at once.

Pure: any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from optimizer.candidates.allocation import Offers, idle_candidate
from optimizer.candidates.pairs import Option
from optimizer.solver import Candidate, Contender, Solution, SolverChoice
from optimizer.solver.saturation import Stock
from optimizer.spec import OptimizerSpec, ServerSpec
from optimizer.system import System


@dataclass(frozen=True, slots=True)
class Stability:
    """The process's defaults, the time, and when servers' allocations last changed, if known."""

    now_s: float = 0.0
    changed_at_s: Mapping[str, float] | None = None
    min_gain_percent: float = 0.0
    hold_minutes: float = 0.0

    def hold_minutes_of(self, flags: OptimizerSpec) -> float:
        return self.hold_minutes if flags.hold_minutes is None else flags.hold_minutes


BY_FLAGS = Stability()  # keeps allocations only as the system's own flags say


def stabilize(
    system: System, offered: Offers, solution: Solution, stability: Stability
) -> tuple[Solution, tuple[str, ...]]:
    """Returns the solution with some current allocations kept, and the names of these servers."""
    flags = system.optimizer
    gain_percent = flags.min_gain_percent
    if gain_percent is None:
        gain_percent = stability.min_gain_percent
    hold_minutes = stability.hold_minutes_of(flags)
    if not gain_percent and not hold_minutes:
        return solution, ()
    changed_at_s = stability.changed_at_s or {}
    stock = Stock(system.capacities, chain.from_iterable(solution.choices.values()))
    choices = dict(solution.choices)
    kept = []
    for contender in sorted(offered.contenders, key=lambda c: (c.priority, c.server)):
        server = system.servers[contender.server]
        chosen = choices.get(contender.server)
        current = _current(system, server, contender)
        if chosen is None or current is None or _is_same(chosen, current):
            continue
        since_s = stability.now_s - changed_at_s.get(server.name, float("-inf"))
        cost = current.replicas * current.candidate.cost_per_replica
        gain = cost - sum(part.replicas * part.candidate.cost_per_replica for part in chosen)
        too_little = 100 * gain < gain_percent * cost
        too_soon = 0 <= since_s < 60 * hold_minutes  # not if the clock was set back
        if (too_little or too_soon) and (flags.unlimited or _swap(stock, chosen, current)):
            choices[server.name] = (current,)
            kept.append(server.name)
    return replace(solution, choices=choices), tuple(kept)


def _current(system: System, server: ServerSpec, contender: Contender) -> SolverChoice | None:
    """Returns the server's current allocation as a choice, if it suffices for the load."""
    current = server.current_alloc
    if current.parts or not current.accelerator:
        return None
    if not 0 < current.num_replicas <= server.most_replicas:
        return None
    candidate = _candidate_on(system, server, contender)
    if candidate is None or candidate.replicas > current.num_replicas or candidate.capped:
        return None
    return SolverChoice(candidate, current.num_replicas)


def _candidate_on(system: System, server: ServerSpec, contender: Contender) -> Candidate | None:
    """Returns the candidate on the current accelerator; None for an idle server without one."""
    name = server.current_alloc.accelerator
    found = next((c for c in contender.candidates if c.accelerator == name), None)
    if found is not None or contender.demand_per_s > 0:
        return found
    accelerator = system.accelerators.get(name)
    perf = system.models[server.model].get(name)
    if accelerator is None or perf is None:
        return None
    return idle_candidate(server, Option(accelerator, perf), server.min_num_replicas)


def _is_same(chosen: tuple[SolverChoice, ...], current: SolverChoice) -> bool:
    return [(part.candidate.accelerator, part.replicas) for part in chosen] == [
        (current.candidate.accelerator, current.replicas)
    ]


def _swap(stock: Stock, chosen: tuple[SolverChoice, ...], current: SolverChoice) -> bool:
    """Exchange the chosen cards for the current ones. Returns False, with nothing changed, if they
    do not fit."""
    for part in chosen:
        stock.take(part.candidate, -part.replicas)
    fits = stock.fits(current.candidate, current.replicas)
    for part in (current,) if fits else chosen:
        stock.take(part.candidate, part.replicas)
    return fits
