"""The data of a system: accelerators, capacities, models, service classes, servers, flags.

The JSON names are the reference's (`slo-itl`, `maxBatchSize`, ...). Every field is checked when
it is read, so other code may rely on its values. Values are immutable: any thread.

Units: cost cents per hour and accelerator unit, power W per unit, times ms, load requests per
minute, memory GB and GB/s. Fields marked "extension" are not in the reference; answers leave them
out unless they were given.
"""

from enum import StrEnum
from itertools import pairwise
from math import inf
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, GetPydanticSchema, model_validator

from optimizer.inferno_json import Body
from optimizer.measured import Computed, LoadSpec, Measured, MeasuredLatency

LOWEST_PRIORITY = 100  # 1 is the highest
DEFAULT_CLASS = "Free"  # the class of a server that names none
MAX_POINTS, MAX_ROWS = 256, 65_536  # points of one curve, and rows at a point
LEAST_MS, MAX_AMOUNT = 1e-6, 1e9  # bounds of a curve's times, and of all times
LEAST_RATE = 1e-300  # requests per minute; a lower rate counts as 0, because results underflow

Name = Annotated[str, Field(min_length=1, max_length=500)]
Text = Annotated[str, Field(max_length=500)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]
Rows = Annotated[int, Field(ge=1, le=MAX_ROWS)]
Level = Annotated[float, Field(ge=0, le=1e12)]
_READ_EMPTY: Any = Field(default_factory=dict, validate_default=True)


class ModelName(Body):
    """The name in the path of `/addModel`."""

    name: Name


class PowerSpec(Body):
    """Power of one unit: `idle` at utilisation 0, `mid_power` at `mid_util`, `full` at 1."""

    idle: Count = 0
    full: Count = 0
    mid_power: Count = 0
    mid_util: Annotated[float, Field(ge=0, le=1)] = 0.0

    def watts(self, utilization: float) -> float:
        """Returns the power at a utilisation: two lines that meet at `mid_util`."""
        if utilization <= self.mid_util and self.mid_util > 0:
            return self.idle + (self.mid_power - self.idle) * utilization / self.mid_util
        if self.mid_util == 1:
            return float(self.full)
        above = (utilization - self.mid_util) / (1 - self.mid_util)
        return self.mid_power + (self.full - self.mid_power) * above


class AcceleratorSpec(Body):
    """A purchasable unit: `multiplicity` cards of one `type`."""

    name: Name
    type: Text = ""
    multiplicity: Annotated[Count, AfterValidator(lambda value: value or 1), Field(le=10**6)] = 1
    mem_size: Count = 0
    mem_bw: Count = Field(default=0, alias="memBW")
    power: PowerSpec = PowerSpec()
    cost: Amount = 0.0


class CapacitySpec(Body):
    """The number of cards of a type."""

    type: Name
    count: Count = 0


class DecodeParms(Body):
    alpha: Amount = 0.0
    beta: Amount = 0.0
    alpha_error: Amount | None = None  # standard error; all errors are extensions
    beta_error: Amount | None = None


class PrefillParms(Body):
    gamma: Amount = 0.0
    delta: Amount = 0.0
    gamma_error: Amount | None = None
    delta_error: Amount | None = None


class PerfParms(Body):
    """The newer reference's three parameters (see `latency.IterationModel`)."""

    alpha: Amount = 0.0
    beta: Amount = 0.0
    gamma: Amount = 0.0


class CurvePoint(Body):
    """A time measured with `rows` rows in a step."""

    rows: Rows
    ms: Annotated[float, Field(ge=LEAST_MS, le=MAX_AMOUNT)]
    standard_error: Amount = 0.0


CurvePoints = Annotated[
    list[CurvePoint], Field(min_length=1, max_length=MAX_POINTS, fail_fast=True)
]


class OverheadPoint(Body):
    """Time that a request waits outside of steps with `rows` in service, itself included."""

    rows: Rows
    ms: Amount
    standard_error: Amount = 0.0


def _one_point(value: Any) -> Any:
    """Reads a single number as constant for all numbers of rows."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [{"rows": 1, "ms": value}]
    return value


class ServiceCurve(Body):
    """Measured step times: a(n) for n decoding rows, and c(n) more for each prompt token.

    Extension; used instead of all other parameters. `overhead_ms` is the time that a request waits
    outside of steps before its first token; it and `prompt_token_ms` may be single numbers.
    `handling_ms` is the part of the overhead in which simultaneous requests wait for each other.
    """

    decode_ms: CurvePoints
    prompt_token_ms: Annotated[CurvePoints, BeforeValidator(_one_point)]
    # Most prompt tokens in a step, and most tokens of a step in which rows decode; absent = any.
    chunk_tokens: Annotated[Count, Field(ge=1)] | None = None
    budget_tokens: Annotated[Count, Field(ge=1)] | None = None
    overhead_ms: Annotated[list[OverheadPoint], BeforeValidator(_one_point)] = Field(
        default_factory=list, max_length=MAX_POINTS, fail_fast=True
    )
    handling_ms: Amount = 0.0
    speed_error: Annotated[float, Field(ge=0, le=1)] = 0.0  # relative standard error of all times
    measured_at: Text | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for name, points in (
            ("decodeMs", self.decode_ms),
            ("promptTokenMs", self.prompt_token_ms),
            ("overheadMs", self.overhead_ms),
        ):
            _check_ascending(name, [point.rows for point in points])
        for number, (before, after) in enumerate(pairwise(self.decode_ms), start=1):
            if after.ms < before.ms:
                raise ValueError(
                    f"decodeMs[{number}].ms={after.ms:g} is below the {before.ms:g} of fewer rows; "
                    "a step of more rows takes no less: average the two or leave one out"
                )
        return self


def _check_ascending(name: str, rows: list[int]) -> None:
    for number, (before, after) in enumerate(pairwise(rows), start=1):
        if after <= before:
            raise ValueError(
                f"{name}[{number}].rows={after} does not exceed the {before} before it; "
                "sort the points by rows and have each number once"
            )


class PerfData(Body):
    """Speed of a model on the accelerator whose name, not type, is `acc`."""

    name: Name
    acc: Name
    acc_count: Annotated[Count, Field(le=10**6)] = 0  # units per replica; 0 means 1
    max_batch_size: Count = 0
    at_tokens: Count = 0
    decode_parms: DecodeParms = DecodeParms()
    prefill_parms: PrefillParms = PrefillParms()
    perf_parms: PerfParms | None = None  # newer reference; used if the four above are all 0
    service_curve: ServiceCurve | None = None  # extension; used before all of these

    @property
    def units(self) -> int:
        return self.acc_count or 1

    @property
    def iteration_parms(self) -> PerfParms | None:
        """Returns the newer reference's parameters, if they are used."""
        decode, prefill = self.decode_parms, self.prefill_parms
        is_given = any((decode.alpha, decode.beta, prefill.gamma, prefill.delta))
        return None if is_given else self.perf_parms


class ModelTarget(Body):
    """Service levels of a model in a class; 0 = none. TPS is the whole server's."""

    model: Name
    slo_itl: Level = Field(default=0.0, alias="slo-itl")
    slo_ttft: Level = Field(default=0.0, alias="slo-ttft")
    slo_tps: Level = Field(default=0.0, alias="slo-tps")


class ServiceClassSpec(Body):
    name: Name
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    model_targets: list[ModelTarget] = Field(default_factory=list, fail_fast=True)

    @property
    def effective_priority(self) -> int:
        """1 (highest) to 100; a priority outside this range counts as 100."""
        return self.priority if 1 <= self.priority <= LOWEST_PRIORITY else LOWEST_PRIORITY

    def target(self, model: str) -> ModelTarget | None:
        """Returns the last entry for the model: later duplicates replace earlier ones."""
        return next((t for t in reversed(self.model_targets) if t.model == model), None)


class AllocationPart(Body):
    """Replicas of one accelerator."""

    accelerator: Text = ""
    num_replicas: Count = 0
    max_batch: Count = 0
    cost: Computed = 0.0
    itl_average: MeasuredLatency = 0.0
    ttft_average: MeasuredLatency = 0.0
    avg_concurrency: Measured = None  # newer reference: requests in service; not used
    utilization: Computed | None = None  # extension, like `powerWatts`; in desired allocations
    power_watts: Computed | None = None  # power of all its replicas
    load: LoadSpec = _READ_EMPTY


class AllocationData(AllocationPart):
    """Accelerator and replicas of a server. A heterogeneous allocation has `parts`, and the other
    fields show the largest part."""

    parts: Annotated[list[AllocationPart], Field(fail_fast=True)] | None = None  # extension

    @property
    def total_cost(self) -> float:
        return sum(part.cost for part in self.parts) if self.parts else self.cost

    def each_part(self) -> list[AllocationPart]:
        """Returns its parts, or itself as the only part; empty if nothing runs."""
        parts: list[AllocationPart] = list(self.parts) if self.parts else [self]
        return [part for part in parts if part.accelerator and part.num_replicas]

    def shape(self) -> list[tuple[str, int]]:
        """Returns the accelerators and replicas that run."""
        return [(part.accelerator, part.num_replicas) for part in self.each_part()]


# JSON of a target and of an allocation, for descriptions of answers.
ModelTargetJson = Annotated[
    dict[str, Any], GetPydanticSchema(lambda _, describe: describe(ModelTarget))
]
AllocationJson = Annotated[
    dict[str, Any], GetPydanticSchema(lambda _, describe: describe(AllocationData))
]


class ServerSpec(Body):
    """A model served in a class. Its load is that of `current_alloc`."""

    name: Name
    class_name: Text = Field(default="", alias="class")
    model: Text = ""
    keep_accelerator: bool = False
    min_num_replicas: Count = 0
    max_num_replicas: Count | None = None  # extension; absent = no bound
    max_batch_size: Count = 0  # 0 = from the performance data
    max_queue_size: Count | None = None  # newer reference; absent = 10 x batch, or 0 there
    current_alloc: AllocationData = _READ_EMPTY
    desired_alloc: AllocationData = AllocationData()

    @model_validator(mode="after")
    def _check_replica_bounds(self) -> Self:
        if self.max_num_replicas is not None and self.max_num_replicas < self.min_num_replicas:
            raise ValueError(
                f"maxNumReplicas={self.max_num_replicas} is below "
                f"minNumReplicas={self.min_num_replicas}"
            )
        return self

    @property
    def most_replicas(self) -> float:
        """The largest number of replicas; infinite without a bound."""
        return inf if self.max_num_replicas is None else self.max_num_replicas


class SaturationPolicy(StrEnum):
    """Best effort for servers that full capacity cannot hold (greedy and MILP)."""

    NONE = "None"
    PRIORITY_EXHAUSTIVE = "PriorityExhaustive"
    PRIORITY_ROUND_ROBIN = "PriorityRoundRobin"
    ROUND_ROBIN = "RoundRobin"


def _known_policy(value: Any) -> Any:
    """Returns the policy, in any case; None for a name that the reference does not know either."""
    if isinstance(value, str):
        return next((p for p in SaturationPolicy if p == value), SaturationPolicy.NONE)
    return value


class OptimizerSpec(Body):
    unlimited: bool = False
    heterogeneous: bool = False
    milp_solver: bool = False
    use_cplex: bool = False
    delayed_best_effort: bool = False
    saturation_policy: Annotated[
        SaturationPolicy, Field(strict=False), BeforeValidator(_known_policy)
    ] = SaturationPolicy.NONE
    price_solver: bool | None = None  # extension; `unlimited` and `milpSolver` override it
    # Extensions; absent = the process's settings.
    min_gain_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    hold_minutes: Annotated[float, Field(ge=0, le=1e6)] | None = None


class AcceleratorData(Body):
    accelerators: list[AcceleratorSpec] = Field(default_factory=list)


class CapacityData(Body):
    count: list[CapacitySpec] = Field(default_factory=list)


class ModelData(Body):
    models: list[PerfData] = Field(default_factory=list)


class ServiceClassData(Body):
    service_classes: list[ServiceClassSpec] = Field(default_factory=list)


class ServerData(Body):
    servers: list[ServerSpec] = Field(default_factory=list)


class OptimizerData(Body):
    optimizer: OptimizerSpec = OptimizerSpec()


class SystemSpec(Body):
    accelerator_data: AcceleratorData = AcceleratorData()
    model_data: ModelData = ModelData()
    service_class_data: ServiceClassData = ServiceClassData()
    server_data: ServerData = ServerData()
    optimizer_data: OptimizerData = OptimizerData()
    capacity_data: CapacityData = CapacityData()


class SystemData(Body):
    """A whole system. It replaces another one, so it must not be absent."""

    system: SystemSpec
