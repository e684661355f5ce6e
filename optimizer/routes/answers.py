"""What the routes answer where that is not an entity of `spec`: for the API's description.

The answers themselves are put together where they are computed; tests hold them to these.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from optimizer.questions.whatif import Swept
from optimizer.spec import AllocationData, ModelTarget

NO_ROUTE = "text/plain"  # for a path with one name where there should be two


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, serialize_by_alias=True)


class FaultAnswer(Answer):
    path: str
    message: str


class Problem(Answer):
    """Every error of the optimizer; `faults` come with status 400."""

    message: str
    faults: list[FaultAnswer] = []


def problems(*statuses: int) -> dict[int, type[Problem]]:
    """Returns the answers of an operation's failures, by status."""
    return dict.fromkeys(statuses, Problem)


class Details(Answer):
    value: float
    utilization: float
    cards: int
    demand_rpm: float = Field(alias="demandRPM")
    max_rpm: float = Field(alias="maxRPM")
    throughput_rpm: float = Field(alias="throughputRPM")
    drop_fraction: float
    saturated: bool
    best_effort: bool
    kept: bool
    power_watts: float
    energy_kwh_per_day: float = Field(alias="energyKWhPerDay")
    energy_wh_per_request: float


class Shape(Answer):
    accelerator: str
    num_replicas: int


class ChangeAnswer(Answer):
    from_: Shape = Field(alias="from")
    to: Shape
    cost_difference: float


class TypeUse(Answer):
    type: str
    count: int
    limit: int
    cost: float


class Summary(Answer):
    solver: str
    notes: list[str]
    gap: float | None
    total_cost: float
    total_power_watts: float
    allocation_by_type: list[TypeUse]


class Solution(Answer):
    """By server."""

    allocations: dict[str, AllocationData]
    unallocated: dict[str, str]
    details: dict[str, Details]
    changes: dict[str, ChangeAnswer]
    summary: Summary


class MaxRates(Answer):
    """Requests per minute that one replica takes under each target alone."""

    slo_ttft: float = Field(alias="slo-ttft")
    slo_itl: float = Field(alias="slo-itl")
    slo_tps: float = Field(alias="slo-tps")


class Refused(Answer):
    code: str
    message: str
    bound: float = 0.0
    best: float = 0.0
    over_by: float = 0.0


class Shortage(Answer):
    """Of cards: what a candidate needs, and what the other servers leave of `count`."""

    type: str
    needed: int
    left: int
    count: int
    message: str


class CandidateAnswer(Answer):
    """Figures come with what could be sized, `maxRateFor` with what has performance data."""

    accelerator: str
    feasible: bool
    reason: Refused | None
    num_replicas: int = 0
    max_batch: int = 0
    cards: int = 0
    cost: float = 0.0
    value: float = 0.0
    itl_average: float = 0.0
    ttft_average: float = 0.0
    utilization: float = 0.0
    max_rpm: float = Field(0.0, alias="maxRPM")
    max_rate_for: MaxRates | None = None
    shortage: Shortage | None


class Explanation(Answer):
    server: str
    current_alloc: AllocationData
    desired_alloc: AllocationData
    refused: Refused | None
    targets: ModelTarget | None
    scale_to_zero: bool
    candidates: list[CandidateAnswer]


class CardCount(Answer):
    type: str
    count: int


class StepAnswer(Answer):
    order: int
    action: Literal["scale-up", "scale-down", "blocked"]
    server: str
    accelerator: str
    from_: int = Field(alias="from")
    to: int
    cards: CardCount
    cost_difference: float
    disruptive: bool


class PlanAnswer(Answer):
    steps: list[StepAnswer]
    blocked: int
    disruptive: int
    current_cost: float
    desired_cost: float
    cost_difference: float


class Measures(Answer):
    throughput: float
    drop_fraction: float
    itl_average: float
    ttft_average: float
    wait_average: float
    utilization: float


class Analyzed(Measures):
    arrival_rate: float
    max_rate: float
    saturated: bool


class Idle(Answer):
    ttft_average: float
    itl_average: float


class Sized(Measures):
    feasible: Literal[True]
    max_rate_for: MaxRates
    idle: Idle
    arrival_rate: float
    tokens_per_second: float


class NotSized(Answer):
    feasible: Literal[False]
    max_rate_for: MaxRates
    idle: Idle


class ServerChoice(Answer):
    accelerator: str
    num_replicas: int
    saturated: bool


class SweepRow(Summary):
    factor: float
    allocated: int
    unallocated: dict[str, str]
    servers: dict[str, ServerChoice]


class Sweep(Answer):
    sweep: Swept
    target: str | None
    rows: list[SweepRow]
