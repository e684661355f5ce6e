"""The answer of a solve, and its JSON. Immutable: any thread.

`allocations` holds exactly the reference's objects. Our extensions are separate keys, so clients
of the reference need not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from typing_extensions import TypedDict

from common.wire import WireDict
from optimizer.candidates.allocation import value_of
from optimizer.solver import SolverChoice
from optimizer.spec import AllocationData, AllocationJson, AllocationPart, ServerSpec

FLOAT32_MAX = float(np.finfo(np.float32).max)
NO_TRAFFIC_PER_S = 1e-12  # below this rate, energy per request means nothing

# Our own fields of stored allocations, which `allocations` in an answer leaves out.
_EXTENSIONS = {"utilization", "power_watts"}
_NOT_THE_REFERENCES = dict.fromkeys(_EXTENSIONS, True) | {"parts": {"__all__": _EXTENSIONS}}


class Details(WireDict):
    value: float
    utilization: float
    cards: int
    demandRPM: float
    maxRPM: float
    throughputRPM: float
    dropFraction: float
    saturated: bool
    bestEffort: bool
    kept: bool
    powerWatts: float
    energyKWhPerDay: float
    energyWhPerRequest: float


class Shape(WireDict):
    accelerator: str
    numReplicas: int


_From = TypedDict("_From", {"from": Shape})


class ChangeAnswer(_From, WireDict):
    to: Shape
    costDifference: float


class TypeUse(WireDict):
    type: str
    count: int
    limit: int
    cost: float


class Summary(WireDict):
    solver: str
    notes: list[str]
    gap: float | None
    totalCost: float
    totalPowerWatts: float
    allocationByType: list[TypeUse]


class Solution(WireDict):
    """The JSON of a solve. Mappings have servers as keys. `loadFaults` describes unusable loads and
    what was done instead."""

    allocations: dict[str, AllocationJson]
    unallocated: dict[str, str]
    loadFaults: dict[str, str]
    details: dict[str, Details]
    changes: dict[str, ChangeAnswer]
    summary: Summary


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation of one server: one part, or several of a heterogeneous solution."""

    server: ServerSpec
    parts: tuple[SolverChoice, ...]  # the part with the most load first
    demand_per_s: float
    powers_w: tuple[float, ...]  # power of each part
    is_kept: bool = False  # kept by stabilisation, or because its load is not known

    @property
    def part_costs(self) -> tuple[float, ...]:
        return tuple(_part_cost(part) for part in self.parts)

    @property
    def cost(self) -> float:
        return sum(self.part_costs)

    @property
    def value(self) -> float:
        """Cost of the transition; see `allocation.value_of`."""
        first = self.parts[0]
        if len(self.parts) == 1 and first.is_exact:
            return first.candidate.value
        return value_of(self.server, first.candidate.accelerator, self.replicas, self.cost)

    @property
    def replicas(self) -> int:
        return sum(part.replicas for part in self.parts)

    @property
    def max_rate_per_s(self) -> float:
        return sum(part.replicas * part.candidate.max_rate_per_s for part in self.parts)

    @property
    def is_saturated(self) -> bool:
        """True if more requests arrive than the service levels allow for."""
        return self.demand_per_s > self.max_rate_per_s * (1 + 1e-6)

    @property
    def is_best_effort(self) -> bool:
        """True if there are fewer replicas than the service levels need."""
        first = self.parts[0]
        return len(self.parts) == 1 and (not first.is_full or first.candidate.capped)

    @property
    def loss(self) -> float:
        """Fraction of requests that find the queue full. Parts share the load by highest rate."""
        able = self.max_rate_per_s
        if able == 0:
            return 0.0
        return sum(
            part.candidate.loss * part.replicas * part.candidate.max_rate_per_s / able
            for part in self.parts
        )

    def to_data(self) -> AllocationData:
        """Returns the allocation as it is stored: the reference's fields, utilization and power,
        and `parts` if there are several."""
        parts = [
            _to_part(part, self.server, power_w)
            for part, power_w in zip(self.parts, self.powers_w, strict=True)
        ]
        return AllocationData(**dict(parts[0]), parts=parts if len(parts) > 1 else None)

    def details(self) -> Details:
        """Returns figures beyond the reference's: load, power, and the highest rate."""
        power_w = sum(self.powers_w)
        served_per_s = self.demand_per_s * (1 - self.loss)
        return {
            "value": shortest(self.value),
            "utilization": shortest(max(p.candidate.utilization for p in self.parts)),
            "cards": sum(part.cards for part in self.parts),
            "demandRPM": shortest(60 * self.demand_per_s),
            "maxRPM": shortest(60 * self.max_rate_per_s),
            "throughputRPM": shortest(60 * served_per_s),
            "dropFraction": shortest(self.loss),
            "saturated": self.is_saturated,
            "bestEffort": self.is_best_effort,
            "kept": self.is_kept,
            "powerWatts": shortest(power_w),
            "energyKWhPerDay": shortest(power_w * 24 / 1000),
            "energyWhPerRequest": shortest(
                power_w / (3600 * served_per_s) if served_per_s > NO_TRAFFIC_PER_S else 0
            ),
        }


@dataclass(frozen=True, slots=True)
class Answer:
    allocations: Mapping[str, Allocation]
    unallocated: Mapping[str, str]  # server -> reason
    load_faults: Mapping[str, str]  # server -> fault of its load and what was done instead
    solver: str
    notes: tuple[str, ...]
    gap: float | None
    card_use: list[TypeUse]

    @property
    def total_cost(self) -> float:
        return sum(allocation.cost for allocation in self.allocations.values())

    def desired(self) -> dict[str, AllocationData]:
        return {name: allocation.to_data() for name, allocation in self.allocations.items()}

    def dump(self, desired: Mapping[str, AllocationData]) -> Solution:
        """Returns the answer of /optimize and /optimizeOne."""
        return {
            "allocations": {
                name: data.model_dump(exclude_none=True, exclude=_NOT_THE_REFERENCES)
                for name, data in desired.items()
            },
            "unallocated": dict(sorted(self.unallocated.items())),
            "loadFaults": dict(sorted(self.load_faults.items())),
            "details": {name: a.details() for name, a in self.allocations.items()},
            "changes": self._changes(desired),
            "summary": self.summary(),
        }

    def summary(self) -> Summary:
        gap = None if self.gap is None or not np.isfinite(self.gap) else shortest(self.gap)
        return {
            "solver": self.solver,
            "notes": list(self.notes),
            "gap": gap,
            "totalCost": shortest(self.total_cost),
            "totalPowerWatts": shortest(sum(sum(a.powers_w) for a in self.allocations.values())),
            "allocationByType": self.card_use,
        }

    def _changes(self, desired: Mapping[str, AllocationData]) -> dict[str, ChangeAnswer]:
        """Returns the servers whose accelerator or replicas differ from the current ones."""
        changes: dict[str, ChangeAnswer] = {}
        for name, allocation in self.allocations.items():
            old, new = allocation.server.current_alloc, desired[name]
            if old.shape() != new.shape():
                changes[name] = {
                    "from": {"accelerator": old.accelerator, "numReplicas": old.num_replicas},
                    "to": {"accelerator": new.accelerator, "numReplicas": new.num_replicas},
                    "costDifference": shortest(new.total_cost - old.total_cost),
                }
        return changes


def _to_part(part: SolverChoice, server: ServerSpec, power_w: float) -> AllocationPart:
    return AllocationPart(
        accelerator=part.candidate.accelerator,
        num_replicas=part.replicas,
        max_batch=part.candidate.batch,
        cost=shortest(_part_cost(part)),
        itl_average=shortest(part.candidate.itl_ms),
        ttft_average=shortest(part.candidate.ttft_ms),
        load=server.current_alloc.load,
        utilization=shortest(part.candidate.utilization),
        power_watts=shortest(power_w),
    )


def _part_cost(part: SolverChoice) -> float:
    if part.is_exact:
        return part.candidate.cost
    return float(np.float32(part.candidate.cost_per_replica) * np.float32(part.replicas))


def shortest(value: float) -> float:
    """Returns the shortest decimal that is the same float32: 75.3, not 75.30000305175781."""
    return float(str(np.float32(value))) if abs(value) < FLOAT32_MAX else float(value)
