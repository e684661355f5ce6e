"""The answer of POST /tune: how much slower a replica is than its parameters, from observations.

No state is kept: the answer contains the filter's state, and the next question brings it back.
"""

from typing import Annotated, Any

import numpy as np
from pydantic import Field, GetPydanticSchema, model_validator

from common.wire import WireDict
from optimizer.answer import shortest
from optimizer.candidates.curves import scaled
from optimizer.inferno_json import Body
from optimizer.measured import MeanTokens
from optimizer.model.tuning import LARGEST_FACTOR, MAX_VARIANCE, SpeedTuner
from optimizer.questions.queries import PER_MINUTE, AnalyzeQuery, ReplicaQuery
from optimizer.spec import LEAST_RATE, Count, Level, PerfData
from optimizer.system import System

MAX_OBSERVATIONS = 100

Factor = Annotated[float, Field(ge=1 / LARGEST_FACTOR, le=LARGEST_FACTOR)]
Error = Annotated[float, Field(gt=0, le=10)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


class Measurement(Body):
    """Means over some time at one load. Tokens default to the query's. Errors are relative standard
    errors of the means, without the variation of a queue over time; `load_error`, which is
    sqrt(2 / requests), adds that variation."""

    at: Seconds
    arrival_rate: Annotated[float, Field(ge=LEAST_RATE, le=1e15)]
    avg_in_tokens: MeanTokens | None = None
    avg_out_tokens: Annotated[MeanTokens, Field(ge=1)] | None = None
    ttft: Level | None = None
    itl: Level | None = None
    ttft_error: Error = 0.1
    itl_error: Error = 0.1
    load_error: Annotated[float, Field(ge=0, le=10)] = 0.0


class State(Body):
    """The filter's state, which an answer contains and the next question brings back."""

    decode: Factor = 1.0
    prefill: Factor = 1.0
    decode_variance: Annotated[float, Field(ge=0, le=MAX_VARIANCE)]
    covariance: Annotated[float, Field(ge=-MAX_VARIANCE, le=MAX_VARIANCE)] = 0.0
    prefill_variance: Annotated[float, Field(ge=0, le=MAX_VARIANCE)]
    at: Seconds | None = None
    refusals: Annotated[Count, Field(le=1000)] = 0

    @model_validator(mode="after")
    def _is_a_covariance(self) -> "State":
        if self.covariance**2 > self.decode_variance * self.prefill_variance * (1 + 1e-9):
            raise ValueError("is no covariance of these variances; send back what was answered")
        return self

    def tuner(self) -> SpeedTuner:
        covariance = np.array(
            [[self.decode_variance, self.covariance], [self.covariance, self.prefill_variance]]
        )
        log = np.log([self.decode, self.prefill])
        return SpeedTuner(log, covariance, self.at, self.refusals)


class TuneQuery(ReplicaQuery):
    """A replica with its fitted parameters, and the observations since, in order."""

    observations: Annotated[list[Measurement], Field(min_length=1, max_length=MAX_OBSERVATIONS)]
    state: State | None = None


StateJson = Annotated[dict[str, Any], GetPydanticSchema(lambda _, describe: describe(State))]


class FactorsNow(WireDict):
    """Factors on the parameters' times, with relative errors."""

    decode: float
    prefill: float
    decodeError: float
    prefillError: float


class Tuned(WireDict):
    """`accepted` has an entry per observation. Parameters are the given ones times `factors`."""

    factors: FactorsNow
    accepted: list[bool]
    decodeParms: dict[str, float]
    prefillParms: dict[str, float]
    perfParms: dict[str, float] | None
    serviceCurve: dict[str, Any] | None
    state: StateJson


def tune(query: TuneQuery, system: System) -> Tuned:
    """Returns the answer of POST /tune. Raises NotFound and InvalidRequest as /analyze does."""
    perf = query.perf(system)
    tuner = SpeedTuner() if query.state is None else query.state.tuner()
    accepted = [_observe(tuner, query, perf, each) for each in query.observations]
    factors = tuner.factors
    (decode_variance, covariance), (_, prefill_variance) = tuner.covariance.tolist()
    now = scaled(perf, factors.decode, factors.prefill)
    return {
        "factors": {
            "decode": shortest(factors.decode),
            "prefill": shortest(factors.prefill),
            "decodeError": shortest(factors.decode_error),
            "prefillError": shortest(factors.prefill_error),
        },
        "accepted": accepted,
        "decodeParms": now.decode_parms.dump(),
        "prefillParms": now.prefill_parms.dump(),
        "perfParms": None if now.perf_parms is None else now.perf_parms.dump(),
        "serviceCurve": None if now.service_curve is None else now.service_curve.dump(),
        "state": State.model_construct(
            decode=factors.decode,
            prefill=factors.prefill,
            decode_variance=decode_variance,
            covariance=covariance,
            prefill_variance=prefill_variance,
            at=tuner.at_s,
            refusals=tuner.refusals,
        ).model_dump(),
    }


def _observe(tuner: SpeedTuner, query: TuneQuery, perf: PerfData, measurement: Measurement) -> bool:
    in_tokens = measurement.avg_in_tokens
    load_query = AnalyzeQuery(
        max_batch_size=query.max_batch_size or perf.max_batch_size,
        max_queue_size=query.max_queue_size,
        avg_in_tokens=query.avg_in_tokens if in_tokens is None else in_tokens,
        avg_out_tokens=measurement.avg_out_tokens or query.avg_out_tokens,
        arrival_rate=measurement.arrival_rate,
    )
    rate = np.array([measurement.arrival_rate / PER_MINUTE])

    def predict(decode: float, prefill: float, load: float) -> tuple[float, float]:
        table = load_query.table(scaled(perf, decode, prefill))
        performance = table.analyze(load * rate)
        return float(performance.ttft_ms[0]), float(performance.itl_ms[0])

    ttft_ms = measurement.ttft, measurement.ttft_error
    itl_ms = measurement.itl, measurement.itl_error
    return tuner.observe(measurement.at, ttft_ms, itl_ms, measurement.load_error, predict)
