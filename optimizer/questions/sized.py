"""Options of a demand, sized: replicas, cost and latencies of each, and how sure they are.

The sizing is the optimizer's own: a system of one server that has every option to choose from.
Pure but for the sizing cache: any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp
from typing import Literal

import numpy as np

from optimizer.candidates.allocation import offers
from optimizer.candidates.eligibility import Refusal
from optimizer.candidates.replicas import (
    DEFAULT_QUEUE,
    GEOMETRIC,
    ReplicaTable,
    SizingCache,
    Speeds,
    Workload,
)
from optimizer.catalogue.options import Demand, Option
from optimizer.catalogue.speeds import slower
from optimizer.model.sizing import Sizing
from optimizer.solver import Candidate
from optimizer.spec import (
    AcceleratorSpec,
    AllocationData,
    LoadSpec,
    ModelTarget,
    ServerSpec,
    ServiceClassSpec,
)
from optimizer.system import System

SERVER = CLASS = "plan"
IN_95 = 1.96  # standard deviations of a normal distribution
NEARLY_FULL = 0.97  # of the highest rate: beyond, a level is missed because the queue explodes
MOST_LOST = 1e-3  # share of requests beyond which a replica does not carry its load

Bind = Literal["slo-ttft", "slo-itl", "capacity"]
Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sized:
    """An option with what the demand needs of it. `bind`: what bounds the rate of a replica."""

    option: Option
    candidate: Candidate
    bind: Bind
    replicas: Bounds = (0, 0)  # and those below: bounds of 95 %
    ttft_ms: Bounds = (0, 0)
    itl_ms: Bounds = (0, 0)

    @property
    def cents(self) -> float:
        return self.candidate.replicas * self.option.cents

    @property
    def cents_bounds(self) -> Bounds:
        return self.replicas[0] * self.option.cents, self.replicas[1] * self.option.cents

    @property
    def cards(self) -> int:
        return self.candidate.replicas * self.option.machine.cards

    def replicas_at(self, rate_per_s: float) -> int:
        """Returns the replicas for another rate at the same levels."""
        return max(ceil(rate_per_s / self.candidate.max_rate_per_s - 1e-9), 1)


@dataclass(frozen=True, slots=True)
class Unfit:
    """An option that misses a level even when idle, with the best it does."""

    option: Option
    refusal: Refusal
    best_ttft_ms: float
    best_itl_ms: float

    def shortfall(self, demand: Demand) -> float:
        """Returns by how much it misses the levels, as a factor; at least 1."""
        return max(
            self.best_ttft_ms / demand.ttft_ms if demand.ttft_ms else 1.0,
            self.best_itl_ms / demand.itl_ms if demand.itl_ms else 1.0,
            1.0,
        )


def sized(
    demand: Demand, options: Sequence[Option], cache: SizingCache
) -> tuple[list[Sized], list[Unfit]]:
    """Returns the options that meet the levels, cheapest first, and those that cannot."""
    by_name = {option.name: option for option in options}
    if not by_name:
        return [], []
    offered = offers(_system(demand, options), cache)
    pairs, sizing = offered.pairs, offered.pairs.sizing
    fit, unfit = [], []
    for contender in offered.contenders:
        for candidate in contender.candidates:
            bind = _bind(sizing, candidate.row)
            fit.append(Sized(by_name[candidate.accelerator], candidate, bind))
    refused = offered.refused_pairs.get(SERVER, {})
    for row in np.flatnonzero(~pairs.is_candidate).tolist():
        name = str(pairs.options.names[pairs.option[row]])
        best = float(sizing.best_ttft_ms[row]), float(sizing.best_itl_ms[row])
        unfit.append(Unfit(by_name[name], refused[name], *best))
    fit.sort(key=lambda each: (each.cents, each.cards, each.option.name))
    return fit, unfit


def with_bounds(demand: Demand, found: Sequence[Sized], cache: SizingCache) -> list[Sized]:
    """Returns the same with bounds: what they would be if all times were as much shorter or
    longer as their error allows. Replicas are then sized anew; latencies are those of the
    replicas that were found."""
    quick, slow = (_moved(found, sign) for sign in (-1, 1))
    needed = [
        {each.option.name: each.candidate.replicas for each in sized(demand, moved, cache)[0]}
        for moved in (quick, slow)
    ]
    at_quick, at_slow = (_latencies(demand, found, moved) for moved in (quick, slow))
    bounded = []
    for index, each in enumerate(found):
        name, replicas = each.option.name, each.candidate.replicas
        low, high = (of.get(name, float("inf")) for of in needed)
        bounded.append(
            replace(
                each,
                replicas=(min(low, replicas), max(high, replicas)),
                ttft_ms=(at_quick[index][0], at_slow[index][0]),
                itl_ms=(at_quick[index][1], at_slow[index][1]),
            )
        )
    return bounded


def _moved(found: Sequence[Sized], sign: int) -> list[Option]:
    moved = []
    for each in found:
        speed = each.option.speed
        perf = slower(speed.perf, exp(sign * IN_95 * speed.error))
        moved.append(replace(each.option, speed=replace(speed, perf=perf)))
    return moved


def _latencies(
    demand: Demand, found: Sequence[Sized], moved: Sequence[Option]
) -> list[tuple[float, float]]:
    """Returns TTFT and ITL of each with the replicas that were found, at the speeds of `moved`."""
    if not found:
        return []
    shape = (demand.in_tokens, demand.out_tokens)
    rows = [(*shape, o.speed.rows, DEFAULT_QUEUE, 0.0, 0.0, 0.0, GEOMETRIC) for o in moved]
    table = ReplicaTable.of(
        Speeds.of([option.speed.perf for option in moved]), Workload.from_rows(rows)
    )
    rates = [demand.rate_per_s / 1000 / each.candidate.replicas for each in found]
    seen = table.analyze(np.array(rates))
    ttft_ms = np.where(seen.loss > MOST_LOST, np.inf, seen.ttft_ms)
    return list(zip(ttft_ms.tolist(), seen.itl_ms.tolist(), strict=True))


def _bind(sizing: Sizing, row: int) -> Bind:
    for_ttft, for_itl = sizing.rate_for_ttft[row], sizing.rate_for_itl[row]
    highest = sizing.rate_for_tps[row]  # without a target for it
    if min(for_ttft, for_itl) > NEARLY_FULL * highest:
        return "capacity"
    return "slo-itl" if for_itl < for_ttft else "slo-ttft"


def _system(demand: Demand, options: Sequence[Option]) -> System:
    model = demand.model.name
    target = ModelTarget(model=model, slo_itl=demand.itl_ms, slo_ttft=demand.ttft_ms)
    load = LoadSpec(
        arrival_rate=60 * demand.rate_per_s,
        avg_in_tokens=demand.in_tokens,
        avg_out_tokens=demand.out_tokens,
    )
    server = ServerSpec(
        name=SERVER, class_name=CLASS, model=model, current_alloc=AllocationData(load=load)
    )
    accelerators = [
        AcceleratorSpec(
            name=option.name,
            type=option.machine.accelerator.name,
            multiplicity=option.machine.cards,
            cost=option.cents,
        )
        for option in options
    ]
    return (
        System()
        .with_accelerators(accelerators)
        .with_perf(option.speed.perf for option in options)
        .with_classes([ServiceClassSpec(name=CLASS, model_targets=[target])])
        .with_servers([server])
    )
