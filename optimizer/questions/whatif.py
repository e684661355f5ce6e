"""Solves again with scaled load, prices or cards. Pure, except for the sizing cache: any thread."""

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, TypeVar

from pydantic import Field

from common.wire import WireDict
from optimizer.answer import Summary
from optimizer.inferno_json import Body
from optimizer.optimize import SolveOptions, optimize
from optimizer.spec import OptimizerSpec, ServerSpec, SystemSpec, Text
from optimizer.system import System, lookup

MAX_FACTORS = 50

Factor = Annotated[float, Field(ge=0, le=1e6)]
T = TypeVar("T")


class Swept(StrEnum):
    LOAD = "load"
    COST = "cost"
    CAPACITY = "capacity"


class WhatIfQuery(Body):
    """Scales the load of servers, the cost of accelerators or the cards of types by factors."""

    sweep: Annotated[Swept, Field(strict=False)]
    factors: Annotated[list[Factor], Field(min_length=1, max_length=MAX_FACTORS)]
    target: Text | None = None  # one server, accelerator or type; absent = all
    optimizer: OptimizerSpec | None = None  # absent = the flags last used
    system: SystemSpec | None = None  # absent = the system of the process


class ServerChoice(WireDict):
    accelerator: str
    numReplicas: int
    saturated: bool


class SweepRow(Summary):
    factor: float
    allocated: int
    unallocated: dict[str, str]
    loadFaults: dict[str, str]
    servers: dict[str, ServerChoice]


class Sweep(WireDict):
    sweep: Swept
    target: str | None
    rows: list[SweepRow]


def what_if(query: WhatIfQuery, system: System, options: SolveOptions) -> Sweep:
    """Returns the answer of POST /whatif, one row per factor. Raises NotFound for a target."""
    if query.system is not None:
        system = System.from_spec(query.system)
    system = replace(system, optimizer=query.optimizer or system.optimizer)
    rows: list[SweepRow] = []
    for factor in query.factors:
        answer = optimize(_scaled(system, query, factor), options)
        rows.append(
            {
                "factor": factor,
                **answer.summary(),
                "allocated": len(answer.allocations),
                "unallocated": dict(sorted(answer.unallocated.items())),
                "loadFaults": dict(sorted(answer.load_faults.items())),
                "servers": {
                    name: {
                        "accelerator": allocation.parts[0].candidate.accelerator,
                        "numReplicas": allocation.replicas,
                        "saturated": allocation.is_saturated,
                    }
                    for name, allocation in answer.allocations.items()
                },
            }
        )
    return {"sweep": query.sweep, "target": query.target, "rows": rows}


def _scaled(system: System, query: WhatIfQuery, factor: float) -> System:
    match query.sweep:
        case Swept.LOAD:
            servers = _chosen("server", system.servers, query.target)
            return system.with_servers(_busier(server, factor) for server in servers.values())
        case Swept.COST:
            accelerators = _chosen("accelerator", system.accelerators, query.target)
            return system.with_accelerators(
                each.model_copy(update={"cost": each.cost * factor})
                for each in accelerators.values()
            )
        case Swept.CAPACITY:
            counts = _chosen("accelerator type", system.capacities, query.target)
            scaled = {card_type: math.floor(n * factor) for card_type, n in counts.items()}
            return replace(system, capacities={**system.capacities, **scaled})


def _chosen(kind: str, mapping: Mapping[str, T], name: str | None) -> Mapping[str, T]:
    return mapping if name is None else {name: lookup(kind, mapping, name)}


def _busier(server: ServerSpec, factor: float) -> ServerSpec:
    load = server.current_alloc.load
    if load.known_rate is None:
        return server
    load = load.model_copy(update={"known_rate": load.known_rate * factor})
    current = server.current_alloc.model_copy(update={"load": load})
    return server.model_copy(update={"current_alloc": current})
