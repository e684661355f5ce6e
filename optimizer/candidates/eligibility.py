"""Finds the servers that can be considered, and refuses the others. Keeps the replicas of servers
whose load cannot be used, so that a gap in measurements does not stop a working server. Pure: any
thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.measured import LoadSpec
from optimizer.solver import Candidate, SolverChoice
from optimizer.spec import DEFAULT_CLASS, LEAST_RATE, AllocationPart, ModelTarget, ServerSpec
from optimizer.system import System, Targets


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason to leave out a server, or one accelerator for it: `best` misses `bound`."""

    code: str
    message: str
    bound: float | None = None
    best: float | None = None


@dataclass(frozen=True, slots=True)
class Eligible:
    """A server that can be considered, with its target and the priority of its class."""

    server: ServerSpec
    target: ModelTarget
    priority: int

    @property
    def is_idle(self) -> bool:
        """Whether nothing arrives. Arrivals without output tokens are work: each has a prefill."""
        return self.server.current_alloc.load.arrival_rate < LEAST_RATE

    @property
    def out_tokens(self) -> int:
        return max(self.server.current_alloc.load.avg_out_tokens, 1)

    @property
    def demand_per_s(self) -> float:
        """Requests per second to plan for: arrivals, or a throughput target if that is higher."""
        arrivals_per_s = self.server.current_alloc.load.arrival_rate / 60
        return max(arrivals_per_s, self.target.slo_tps / self.out_tokens)


def eligible(system: System, server: ServerSpec, targets: Targets) -> Eligible | Refusal:
    """Returns a refusal if too little is known about a server, or its load is negative."""
    if refusal := _negative_load(server.current_alloc.load):
        return refusal
    if server.model not in system.models:
        return Refusal("model", f"model {server.model or '(none)'} is not known")
    class_name = server.class_name or DEFAULT_CLASS
    service_class = system.classes.get(class_name)
    if service_class is None:
        return Refusal("class", f"service class {class_name} is not known")
    target = targets.get((class_name, server.model))
    if target is None:
        return Refusal(
            "class", f"service class {class_name} has no target for model {server.model}"
        )
    return Eligible(server, target, service_class.effective_priority)


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
    if running and (refusal := _negative_load(load)):
        return LoadFault(f"{refusal.message}; what runs stays", running)
    if missing := _missing(load):
        remedy = "what runs stays" if running else "planned as 0"
        return LoadFault(f"load: {missing} is not known; {remedy}", running)
    return None


def _negative_load(load: LoadSpec) -> Refusal | None:
    for name, value in (
        ("arrivalRate", load.arrival_rate),
        ("avgInTokens", load.avg_in_tokens),
        ("avgOutTokens", load.avg_out_tokens),
    ):
        if value < 0:
            return Refusal("load", f"load: {name} is {value:g}; it must not be negative", 0, value)
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
