"""Keeps the replicas of servers whose load cannot be used, so that a gap in measurements does not
stop a working server. Pure: any thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.candidates.eligibility import negative_load
from optimizer.measured import LoadSpec
from optimizer.solver import Candidate, SolverChoice
from optimizer.spec import LEAST_RATE, AllocationPart, ServerSpec
from optimizer.system import System


@dataclass(frozen=True, slots=True)
class LoadFault:
    """The fault of a load, and the running replicas that stay."""

    message: str
    running: tuple[SolverChoice, ...]


def load_fault(system: System, server: ServerSpec) -> LoadFault | None:
    load = server.current_alloc.load
    running = tuple(_within_maximum(system, server))
    if sum(choice.replicas for choice in running) < server.min_num_replicas:
        running = ()
    if running and (refusal := negative_load(load)):
        return LoadFault(f"{refusal.message}; what runs stays", running)
    if missing := _missing(load):
        remedy = "what runs stays" if running else "planned as 0"
        return LoadFault(f"load: {missing} is not known; {remedy}", running)
    return None


def _missing(load: LoadSpec) -> str | None:
    """Returns the missing figures that are needed. Without arrivals, tokens are not needed."""
    if load.known_rate is None:
        return "arrivalRate"
    if load.known_rate < LEAST_RATE:
        return None
    tokens = (("avgInTokens", load.known_in_tokens), ("avgOutTokens", load.known_out_tokens))
    return next((name for name, value in tokens if value is None), None)


def _within_maximum(system: System, server: ServerSpec) -> Iterator[SolverChoice]:
    left = server.most_replicas
    for part in server.current_alloc.each_part():
        replicas = int(min(part.num_replicas, left))
        if replicas:
            yield SolverChoice(_running_candidate(system, server.model, part, replicas), replicas)
        left -= replicas


def _running_candidate(
    system: System, model: str, part: AllocationPart, replicas: int
) -> Candidate:
    """Returns a running part as a candidate, with its measured figures and the current price."""
    card_type, cards, unit_cost = system.unit(model, part.accelerator)
    if part.accelerator not in system.accelerators:
        unit_cost = part.cost / part.num_replicas
    cost_per_replica = np.float32(unit_cost)
    return Candidate(
        accelerator=part.accelerator,
        card_type=card_type,
        replicas=replicas,
        batch=part.max_batch,
        cost=float(cost_per_replica * np.float32(replicas)),
        value=0.0,
        itl_ms=part.itl_average,
        ttft_ms=part.ttft_average,
        utilization=part.utilization or 0.0,
        max_rate_per_s=0.0,
        cards_per_replica=cards,
        cost_per_replica=float(cost_per_replica),
    )
