"""Questions about one replica: latencies at a rate, and the highest rate for targets.

Rates on the wire are requests per minute, as everywhere in the data. Pure: any thread.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from common.wire import WireDict
from optimizer.answer import shortest
from optimizer.candidates.replicas import (
    DEFAULT_QUEUE,
    GEOMETRIC,
    ReplicaTable,
    RequestTable,
    Speeds,
)
from optimizer.errors import Fault, InvalidRequest
from optimizer.inferno_json import Body
from optimizer.measured import MeanTokens, Spread
from optimizer.model.queueing import MAX_BATCH, Performance
from optimizer.model.sizing import Sizing
from optimizer.simulation.estimate import LEAST_REQUESTS
from optimizer.spec import (
    LEAST_RATE,
    Count,
    DecodeParms,
    Level,
    PerfData,
    PerfParms,
    PrefillParms,
    ServiceCurve,
    Text,
)
from optimizer.system import System

PER_MINUTE = 60_000  # ms
MAX_REQUESTS, MAX_PRIORITIES = 500_000, 10
NO_TARGETS = 0.0, 0.0, 0.0

Method = Literal["auto", "chain", "simulation"]
Share = Annotated[float, Field(ge=0, le=1)]


class ReplicaQuery(Body):
    """One replica and the shape of its requests.

    Its speed is given by `decodeParms` and `prefillParms`, by `perfParms`, by `serviceCurve`, or by
    `model` and `acc`, which name performance data of the system.
    """

    model: Text = ""
    acc: Text = ""
    decode_parms: DecodeParms = DecodeParms()
    prefill_parms: PrefillParms = PrefillParms()
    perf_parms: PerfParms | None = None
    service_curve: ServiceCurve | None = None
    max_batch_size: Annotated[Count, Field(le=MAX_BATCH)] = 0
    max_queue_size: Count | None = None
    avg_in_tokens: MeanTokens = 0
    avg_out_tokens: Annotated[MeanTokens, Field(ge=1)] = 1
    out_tokens_scv: Spread | None = None  # absent = 1, about geometric; needs a service curve

    def table(
        self, perf: PerfData, targets: tuple[float, float, float] = NO_TARGETS
    ) -> ReplicaTable:
        """Returns the replica with this data as a table with one entry. Raises InvalidRequest, also
        for options that need a service curve, if there is none."""
        if perf.service_curve is None and (name := self._option_of_curve()):
            message = "needs a serviceCurve, which this performance data has not: give one or leave"
            raise InvalidRequest([Fault(name, f"{message} {name} out")])
        speed, tokens = Speeds.of([perf]), (self.avg_in_tokens, self.avg_out_tokens)
        if not self.max_batch_size and speed.scaled_batch(self.avg_out_tokens)[0] == 0:
            raise InvalidRequest([Fault("maxBatchSize", "give at least 1")])
        queue = DEFAULT_QUEUE if self.max_queue_size is None else self.max_queue_size
        spread = GEOMETRIC if self.out_tokens_scv is None else self.out_tokens_scv
        work = RequestTable.from_rows([(*tokens, self.max_batch_size, queue, *targets, spread)])
        table = ReplicaTable.of(speed, work)
        if not table.is_valid()[0]:
            message = "the parameters give a service time of 0, or one place and no queue"
            raise InvalidRequest([Fault("", message)])
        return table

    def _option_of_curve(self) -> str | None:
        """Returns the name of an option that needs a service curve; None without one."""
        return None if self.out_tokens_scv is None else "outTokensScv"

    def perf(self, system: System) -> PerfData:
        """Returns the performance data that the query gives or names. Raises NotFound."""
        if self.model or self.acc:
            return system.perf_of(self.model, self.acc)
        return PerfData(
            name="-",
            acc="-",
            decode_parms=self.decode_parms,
            prefill_parms=self.prefill_parms,
            perf_parms=self.perf_parms,
            service_curve=self.service_curve,
        )


class AnalyzeQuery(ReplicaQuery):
    """With `method` auto the chain answers or, outside of its bounds, a simulation of the curve.

    The fields after `method` need the simulation: arrivals burstier than Poisson, prompts of mixed
    lengths, and shares of requests by priority 0, 1, ....
    """

    arrival_rate: Annotated[float, Field(ge=LEAST_RATE, le=1e15)]
    method: Method = "auto"
    arrival_scv: Spread = 1.0
    in_tokens_scv: Spread = 0.0
    priority_shares: Annotated[list[Share], Field(max_length=MAX_PRIORITIES)] = Field(
        default_factory=list
    )
    requests: Annotated[int, Field(ge=LEAST_REQUESTS, le=MAX_REQUESTS)] = 40_000
    seed: Count = 0

    @property
    def is_simple(self) -> bool:
        """Whether all arrivals are alike and Poisson."""
        return self.arrival_scv == 1 and self.in_tokens_scv == 0 and len(self.priority_shares) < 2

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.priority_shares and sum(self.priority_shares) <= 0:
            raise ValueError("priorityShares: all are 0; give at least one of them a share")
        return self

    def _option_of_curve(self) -> str | None:
        options = (
            ("method", self.method == "simulation"),
            ("arrivalScv", self.arrival_scv != 1),
            ("inTokensScv", self.in_tokens_scv != 0),
            ("priorityShares", len(self.priority_shares) > 1),
        )
        return next((name for name, is_used in options if is_used), super()._option_of_curve())


class SizeQuery(ReplicaQuery):
    """A replica and the targets it must meet; 0 means no target, as in service classes."""

    slo_ttft: Level = Field(default=0.0, alias="slo-ttft")
    slo_itl: Level = Field(default=0.0, alias="slo-itl")
    slo_tps: Level = Field(default=0.0, alias="slo-tps")


_Rates = TypedDict("_Rates", {"slo-ttft": float, "slo-itl": float, "slo-tps": float})


class MaxRates(_Rates, WireDict):
    """Requests per minute that one replica takes under each target alone."""


class Measures(WireDict):
    throughput: float
    dropFraction: float
    itlAverage: float
    ttftAverage: float
    waitAverage: float
    utilization: float


class Bounds(WireDict):
    low: float
    high: float


class Interval(WireDict):
    """95 % bounds, from the standard errors of the parameters and of the simulation."""

    itlAverage: Bounds
    ttftAverage: Bounds
    throughput: Bounds


class OfPriority(WireDict):
    priority: int
    ttftAverage: float


class Analyzed(Measures):
    """`method` is the one that answered, and `why` the reason. `interval` is null if no errors are
    known; `byPriority` is empty if all requests have the same priority."""

    arrivalRate: float
    maxRate: float
    saturated: bool
    method: Literal["chain", "simulation"]
    why: str
    warnings: list[str]
    interval: Interval | None
    byPriority: list[OfPriority]


class Idle(WireDict):
    ttftAverage: float
    itlAverage: float


class NotSized(WireDict):
    feasible: Literal[False]
    maxRateFor: MaxRates
    idle: Idle


class Sized(Measures):
    feasible: Literal[True]
    maxRateFor: MaxRates
    idle: Idle
    arrivalRate: float
    tokensPerSecond: float


def size(query: SizeQuery, system: System) -> Sized | NotSized:
    """Returns the answer of POST /size. A target that cannot be met is no error."""
    targets = query.slo_ttft, query.slo_itl, query.slo_tps
    table = query.table(query.perf(system), targets)
    sizing = table.size()
    max_rate_for = max_rates(sizing, 0)
    idle = Idle(
        ttftAverage=shortest(sizing.best_ttft_ms[0]), itlAverage=shortest(sizing.best_itl_ms[0])
    )
    if not sizing.feasible[0]:
        return NotSized(feasible=False, maxRateFor=max_rate_for, idle=idle)
    found = table.analyze(sizing.rate_per_ms)
    tokens_per_s = 1000 * found.throughput_per_ms[0] * query.avg_out_tokens
    return {
        "feasible": True,
        "maxRateFor": max_rate_for,
        "idle": idle,
        "arrivalRate": per_minute(sizing.rate_per_ms[0]),
        "tokensPerSecond": shortest(tokens_per_s),
        **measures(found),
    }


def max_rates(sizing: Sizing, row: int) -> MaxRates:
    """Returns the requests per minute that one replica takes under each target alone."""
    return {
        "slo-ttft": per_minute(sizing.rate_for_ttft[row]),
        "slo-itl": per_minute(sizing.rate_for_itl[row]),
        "slo-tps": per_minute(sizing.rate_for_tps[row]),
    }


def measures(found: Performance) -> Measures:
    return {
        "throughput": per_minute(found.throughput_per_ms[0]),
        "dropFraction": shortest(found.loss[0]),
        "itlAverage": shortest(found.itl_ms[0]),
        "ttftAverage": shortest(found.ttft_ms[0]),
        "waitAverage": shortest(found.wait_ms[0]),
        "utilization": shortest(found.utilization[0]),
    }


def per_minute(rate_per_ms: float) -> float:
    return shortest(PER_MINUTE * rate_per_ms)
