"""Questions about one replica: its latencies at a rate, its highest rate for targets.

Rates on the wire are requests per minute, as everywhere in the data. Pure: any thread.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from optimizer.answer import shortest
from optimizer.candidates.replicas import (
    DEFAULT_QUEUE,
    Analysis,
    ReplicaTable,
    Speeds,
    Workload,
)
from optimizer.errors import Fault, InvalidRequest
from optimizer.inferno_json import Body, JsonObject, closed
from optimizer.model.queueing import MAX_BATCH
from optimizer.model.sizing import Sizing
from optimizer.spec import Count, DecodeParms, Level, PerfData, PerfParms, PrefillParms, Text
from optimizer.system import System, lookup

PER_MINUTE = 60_000  # ms


class ReplicaQuery(Body):
    """One replica and the shape of its requests.

    Its speed is given by `decodeParms` and `prefillParms`, by `perfParms`, or by `model` and
    `acc`, which name performance data of the system.
    """

    model: Text = ""
    acc: Text = ""
    decode_parms: DecodeParms = DecodeParms()
    prefill_parms: PrefillParms = PrefillParms()
    perf_parms: PerfParms | None = None
    max_batch_size: Annotated[Count, Field(le=MAX_BATCH)] = 0
    max_queue_size: Count | None = None
    avg_in_tokens: Count = 0
    avg_out_tokens: Annotated[Count, Field(ge=1)] = 1

    def table(self, system: System, targets: tuple[float, float, float]) -> ReplicaTable:
        """Returns the replica as the one entry of a table. Raises NotFound, and InvalidRequest
        where there is nothing to compute."""
        return self.table_of(self.perf(system), targets)

    def table_of(self, perf: PerfData, targets: tuple[float, float, float]) -> ReplicaTable:
        """Returns `table` with this data in place of the query's own."""
        speed, tokens = Speeds.of([perf]), (self.avg_in_tokens, self.avg_out_tokens)
        if not self.max_batch_size and speed.scaled_batch(self.avg_out_tokens)[0] == 0:
            raise InvalidRequest([Fault("maxBatchSize", "give at least 1")])
        queue = DEFAULT_QUEUE if self.max_queue_size is None else self.max_queue_size
        work = Workload.from_rows([(*tokens, self.max_batch_size, queue, *targets)])
        table = ReplicaTable.of(speed, work)
        if not table.is_valid()[0]:
            message = "the parameters give a service time of 0, or one place and no queue"
            raise InvalidRequest([Fault("", message)])
        return table

    def perf(self, system: System) -> PerfData:
        """Returns the performance data that the query gives or names. Raises NotFound."""
        if self.model or self.acc:
            return lookup("accelerator", lookup("model", system.models, self.model), self.acc)
        return PerfData(
            name="-",
            acc="-",
            decode_parms=self.decode_parms,
            prefill_parms=self.prefill_parms,
            perf_parms=self.perf_parms,
        )


class AnalyzeQuery(ReplicaQuery):
    arrival_rate: Annotated[float, Field(gt=0, le=1e15)]


class SizeQuery(ReplicaQuery):
    """0 = no target, as in service classes."""

    slo_ttft: Level = Field(default=0.0, alias="slo-ttft")
    slo_itl: Level = Field(default=0.0, alias="slo-itl")
    slo_tps: Level = Field(default=0.0, alias="slo-tps")


MaxRates = TypedDict("MaxRates", {"slo-ttft": float, "slo-itl": float, "slo-tps": float})
"""Requests per minute that one replica takes under each target alone."""
closed(MaxRates)


class Measures(JsonObject):
    throughput: float
    dropFraction: float
    itlAverage: float
    ttftAverage: float
    waitAverage: float
    utilization: float


class Analyzed(Measures):
    arrivalRate: float
    maxRate: float
    saturated: bool


class Idle(JsonObject):
    ttftAverage: float
    itlAverage: float


class NotSized(JsonObject):
    feasible: Literal[False]
    maxRateFor: MaxRates
    idle: Idle


class Sized(Measures):
    feasible: Literal[True]
    maxRateFor: MaxRates
    idle: Idle
    arrivalRate: float
    tokensPerSecond: float


def analyze(query: AnalyzeQuery, system: System) -> Analyzed:
    """Returns the answer of POST /analyze."""
    table = query.table(system, (0.0, 0.0, 0.0))
    found = table.analyze(np.array([query.arrival_rate / PER_MINUTE]))
    highest = float(table.size().rate_per_ms[0])
    return {
        "arrivalRate": query.arrival_rate,
        "maxRate": _per_minute(highest),
        "saturated": query.arrival_rate / PER_MINUTE > highest,
        **_measures(found),
    }


def size(query: SizeQuery, system: System) -> Sized | NotSized:
    """Returns the answer of POST /size. That a target cannot be met is an answer, not an error."""
    table = query.table(system, (query.slo_ttft, query.slo_itl, query.slo_tps))
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
        "arrivalRate": _per_minute(sizing.rate_per_ms[0]),
        "tokensPerSecond": shortest(tokens_per_s),
        **_measures(found),
    }


def max_rates(sizing: Sizing, row: int) -> MaxRates:
    """Returns the requests per minute that one replica takes under each target alone."""
    return {
        "slo-ttft": _per_minute(sizing.rate_for_ttft[row]),
        "slo-itl": _per_minute(sizing.rate_for_itl[row]),
        "slo-tps": _per_minute(sizing.rate_for_tps[row]),
    }


def _measures(found: Analysis) -> Measures:
    return {
        "throughput": _per_minute(found.throughput_per_ms[0]),
        "dropFraction": shortest(found.loss[0]),
        "itlAverage": shortest(found.itl_ms[0]),
        "ttftAverage": shortest(found.ttft_ms[0]),
        "waitAverage": shortest(found.wait_ms[0]),
        "utilization": shortest(found.utilization[0]),
    }


def _per_minute(rate_per_ms: float) -> float:
    return shortest(PER_MINUTE * rate_per_ms)
