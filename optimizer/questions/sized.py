"""Sizes the options of a demand: replicas, cost and latencies of each, with bounds.

Uses the optimizer's own sizing, on a system of one server with all options. Pure, except for the
sizing cache: any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil, exp
from typing import Literal

import numpy as np

from common.numerics import FloatArray
from optimizer.candidates.allocation import candidates_of, refusals_of
from optimizer.candidates.curves import scaled
from optimizer.candidates.eligibility import Eligible, Refusal
from optimizer.candidates.pairs import OptionTable, PairTable, size_pairs
from optimizer.candidates.replicas import (
    DEFAULT_QUEUE,
    GEOMETRIC,
    ReplicaTable,
    RequestTable,
    SizingCache,
    Speeds,
)
from optimizer.catalogue.options import Option, RequestDemand
from optimizer.measured import LoadSpec
from optimizer.model.sizing import Sizing
from optimizer.solver import Candidate
from optimizer.spec import (
    LOWEST_PRIORITY,
    AcceleratorSpec,
    AllocationData,
    ModelTarget,
    ServerSpec,
)
from optimizer.system import System

SERVER = "plan"
IN_95 = 1.96  # standard deviations of a normal distribution
ENDLESS = float("inf")
AT_ONCE = 3  # options that are sized together in the search for the cheapest
MOST_MORE = 64  # upper bounds of more than this many times the replicas count as infinite
NEARLY_FULL = 0.97  # share of the highest rate above which a missed level is due to queueing
MOST_LOST = 1e-3  # share of lost requests above which a replica is overloaded

Bind = Literal["slo-ttft", "slo-itl", "capacity"]
Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sized:
    """An option that meets the levels. `bind` is the level that limits a replica's rate."""

    option: Option
    candidate: Candidate
    bind: Bind
    replicas: Bounds = (0, 0)  # this and the following: 95 % bounds
    ttft_ms: Bounds = (0, 0)
    itl_ms: Bounds = (0, 0)

    @property
    def cents(self) -> float:
        return self.candidate.replicas * self.option.cents

    @property
    def cents_bounds(self) -> Bounds:
        low, high = self.replicas
        return low * self.option.cents, high * self.option.cents if high < ENDLESS else ENDLESS

    @property
    def cards(self) -> int:
        return self.candidate.replicas * self.option.machine.cards

    def in_order(self) -> tuple[float, int, int, str]:
        """Returns the sort key for cheapest first."""
        return self.cents, self.cards, self.option.machine.cards, self.option.name

    def replicas_at(self, rate_per_s: float) -> int:
        """Returns the number of replicas for another rate at the same levels."""
        return max(ceil(rate_per_s / self.candidate.max_rate_per_s - 1e-9), 1)


@dataclass(frozen=True, slots=True)
class Unfit:
    """An option that misses a level even when idle, with its best latencies."""

    option: Option
    refusal: Refusal
    best_ttft_ms: float
    best_itl_ms: float

    def shortfall(self, demand: RequestDemand) -> float:
        """Returns the factor by which it misses the levels; at least 1."""
        return max(
            self.best_ttft_ms / demand.ttft_ms if demand.ttft_ms else 1.0,
            self.best_itl_ms / demand.itl_ms if demand.itl_ms else 1.0,
            1.0,
        )


def sized(
    demand: RequestDemand, options: Sequence[Option], cache: SizingCache
) -> tuple[list[Sized], list[Unfit]]:
    """Returns the options that meet the levels, cheapest first, and those that do not."""
    by_name = {option.name: option for option in options}
    if not by_name:
        return [], []
    pairs = _pairs(demand, options, cache)
    sizing = pairs.sizing
    fit = [
        Sized(by_name[candidate.accelerator], candidate, _bind(sizing, candidate.row))
        for candidate in candidates_of(pairs)[0]
    ]
    refused = refusals_of(pairs).get(SERVER, {})
    best = zip(options, sizing.best_ttft_ms.tolist(), sizing.best_itl_ms.tolist(), strict=True)
    unfit = [
        Unfit(option, refused[option.name], *best_ms)
        for option, *best_ms in best
        if option.name in refused
    ]
    return sorted(fit, key=Sized.in_order), unfit


def sized_in_turn(
    demand: RequestDemand, options: Sequence[Option], cache: SizingCache
) -> tuple[list[Sized], list[Unfit]]:
    """Like `sized`, but skips options that cannot be cheaper than earlier ones of the same
    accelerator."""
    fit: list[Sized] = []
    unfit: list[Unfit] = []
    by_type: dict[str, list[Option]] = {}
    for option in options:
        by_type.setdefault(option.accelerator, []).append(option)
    for turn in zip_longest(*by_type.values()):
        cents = {each.option.accelerator: each.cents for each in fit}
        worth = [
            option
            for name, option in zip(by_type, turn, strict=True)
            if option and (name not in cents or option.lowest_cost(demand) < cents[name])
        ]
        more = sized(demand, worth, cache)
        fit, unfit = fit + more[0], unfit + more[1]
    return sorted(fit, key=Sized.in_order), unfit


def cheapest(
    demand: RequestDemand, options: Sequence[Option], max_cards: int | None, cache: SizingCache
) -> Sized | None:
    """Returns the cheapest option that meets the levels. Sizes only options that may be cheaper."""
    best: Sized | None = None
    waiting = sorted((option.lowest_cost(demand), option.name, option) for option in options)
    while waiting and waiting[0][0] < (best.cents if best else ENDLESS):
        fit, _ = sized(demand, [option for *_, option in waiting[:AT_ONCE]], cache)
        fit = [each for each in fit if max_cards is None or each.cards <= max_cards]
        best = min([*([best] if best else []), *fit], key=Sized.in_order, default=None)
        waiting = waiting[AT_ONCE:]
    return best


def with_bounds(demand: RequestDemand, found: Sequence[Sized]) -> list[Sized]:
    """Returns the options with 95 % bounds: the results if all times were as short or as long as
    their errors allow. Bounds of latencies are for the number of replicas found."""
    if not found:
        return []
    replicas = np.array([each.candidate.replicas for each in found], dtype=np.float64)
    quick, slow = (_moved(demand, found, sign) for sign in (-1, 1))
    fewest, most = (_needed(demand, table) for table in (quick, slow))
    most = np.where(most > MOST_MORE * replicas, np.inf, most)
    at_quick, at_slow = (_latencies(demand, table, replicas) for table in (quick, slow))
    return [
        replace(
            each,
            replicas=(min(fewest[i], replicas[i]), max(most[i], replicas[i])),
            ttft_ms=(float(at_quick[0][i]), float(at_slow[0][i])),
            itl_ms=(float(at_quick[1][i]), float(at_slow[1][i])),
        )
        for i, each in enumerate(found)
    ]


def _moved(demand: RequestDemand, found: Sequence[Sized], sign: int) -> ReplicaTable:
    """Returns a replica of each option, as fast or slow as its error allows."""
    speeds = [each.option.speed for each in found]
    factors = [exp(sign * IN_95 * speed.error) for speed in speeds]
    perfs = [
        scaled(speed.perf, factor, factor) for speed, factor in zip(speeds, factors, strict=True)
    ]
    shape = (demand.in_tokens, demand.out_tokens)
    levels = (demand.ttft_ms, demand.itl_ms, 0.0)
    rows = [(*shape, speed.rows, DEFAULT_QUEUE, *levels, GEOMETRIC) for speed in speeds]
    return ReplicaTable.of(Speeds.of(perfs), RequestTable.from_rows(rows))


def _latencies(
    demand: RequestDemand, table: ReplicaTable, replicas: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns TTFT and ITL with these replicas. TTFT is infinite if they lose requests or if the
    load is too high for them to compute anything."""
    with np.errstate(all="ignore"):
        performance = table.analyze(demand.rate_per_s / 1000 / replicas)
    ttft_ms = np.where(performance.loss <= MOST_LOST, performance.ttft_ms, np.inf)
    return np.nan_to_num(ttft_ms, nan=np.inf, posinf=np.inf), np.nan_to_num(
        performance.itl_ms, nan=np.inf, posinf=np.inf
    )


def _needed(demand: RequestDemand, table: ReplicaTable) -> FloatArray:
    """Returns the replicas that meet the levels; infinite if none do."""
    with np.errstate(divide="ignore"):
        needed = demand.rate_per_s / (1000 * table.size().throughput_per_ms)
    return np.ceil(needed * (1 - 1e-9))


def _bind(sizing: Sizing, row: int) -> Bind:
    for_ttft, for_itl = sizing.rate_for_ttft[row], sizing.rate_for_itl[row]
    highest = sizing.rate_for_tps[row]  # without a throughput target
    if min(for_ttft, for_itl) > NEARLY_FULL * highest:
        return "capacity"
    return "slo-itl" if for_itl < for_ttft else "slo-ttft"


def _pairs(demand: RequestDemand, options: Sequence[Option], cache: SizingCache) -> PairTable:
    """Returns the pairs of one server, for the demand, with each option."""
    model = demand.model.name
    load = LoadSpec(
        known_rate=60 * demand.rate_per_s,
        known_in_tokens=demand.in_tokens,
        known_out_tokens=demand.out_tokens,
    )
    server = ServerSpec(name=SERVER, model=model, current_alloc=AllocationData(load=load))
    target = ModelTarget(model=model, slo_itl=demand.itl_ms, slo_ttft=demand.ttft_ms)
    accelerators = [
        AcceleratorSpec(
            name=option.name,
            type=option.accelerator,
            multiplicity=option.machine.cards,
            cost=option.cents,
        )
        for option in options
    ]
    perfs = (option.speed.perf for option in options)
    system = System().with_accelerators(accelerators).with_perf(perfs)
    return size_pairs([Eligible(server, target, LOWEST_PRIORITY)], OptionTable(system), cache)
