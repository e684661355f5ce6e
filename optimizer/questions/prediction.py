"""The answer of POST /analyze, with its method, interval and warnings.

The chain answers within its bounds of validity. Outside of them, and for bursts, mixed prompts and
priorities, a service curve is simulated token by token. Intervals come from samples of the
parameters within their standard errors, drawn with a fixed seed. Pure: any thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from common.numerics import FloatArray
from optimizer.answer import shortest
from optimizer.candidates.replicas import ReplicaTable
from optimizer.errors import Fault, InvalidRequest
from optimizer.model.curve_chain import CurveReplica
from optimizer.model.step_curve import NO_OVERHEAD, Points, StepCurve
from optimizer.questions.queries import (
    PER_MINUTE,
    Analyzed,
    AnalyzeQuery,
    Interval,
    Measures,
    measures,
    per_minute,
)
from optimizer.simulation.estimate import (
    LEAST_REQUESTS,
    MAX_EVENTS,
    Estimate,
    estimate,
    num_events,
)
from optimizer.simulation.server import Server
from optimizer.simulation.traffic import Traffic
from optimizer.spec import PerfData
from optimizer.system import System

SAMPLES, SAMPLED_ROWS = 40, 1024  # samples of the parameters; most rows of a sampled replica
IN_95 = 1.96  # standard deviations of a normal distribution
WIDE = 0.3  # half an interval over its middle, above which there is a warning
OFTEN = 0.01  # share of time beyond measured rows, above which there is a warning
IDLE = 1e-9  # share of the highest rate below which simulated requests never meet
MOST_LOG = 50.0
LEAST_SPEED = 0.05  # lowest ratio of a sampled time to the measured one

Triple = FloatArray  # throughput per ms, ITL and TTFT


@dataclass(frozen=True, slots=True)
class _MethodResult:
    """The result of a method. `above` is the share of time with more rows than were measured."""

    method: Literal["chain", "simulation"]
    measures: Measures
    values: Triple
    half_widths: Triple  # 95 % intervals with the exact parameters
    above: float
    by_priority: tuple[float, ...] = ()


def analyze(query: AnalyzeQuery, system: System) -> Analyzed:
    """Returns the answer of POST /analyze. Raises NotFound, or InvalidRequest if there is nothing
    to compute or a simulation would take too long."""
    perf = query.perf(system)
    table = query.table(perf)
    rate = query.arrival_rate / PER_MINUTE
    highest = float(table.size().rate_per_ms[0])
    replica = table.curve_replica(0)
    simulates, why = _choice(query, replica, rate)
    factors = _factors(table, replica, perf, rate)
    if replica is not None and simulates:
        result = _by_simulation(query, replica, rate)
    else:
        result = _by_chain(table, replica, rate)
    has_interval = factors is not None or result.method == "simulation"
    interval = _interval(result, factors) if has_interval else None
    return {
        "arrivalRate": query.arrival_rate,
        "maxRate": per_minute(highest),
        "saturated": rate > highest,
        **result.measures,
        "method": result.method,
        "why": why,
        "warnings": [
            *_doubts(query, replica, rate, result),
            *_wide(interval, result, rate / highest),
        ],
        "interval": interval,
        "byPriority": [
            {"priority": priority, "ttftAverage": shortest(ttft_ms)}
            for priority, ttft_ms in enumerate(result.by_priority)
        ],
    }


def _choice(query: AnalyzeQuery, replica: CurveReplica | None, rate: float) -> tuple[bool, str]:
    """Returns whether to simulate, and why."""
    if replica is None:
        return False, "there is no service curve to simulate"
    if query.method != "auto":
        return query.method == "simulation", "asked for"
    if not query.is_simple:
        return True, "arrivals are not Poisson, or prompts or priorities are mixed"
    if rate >= replica.max_rate_per_ms:
        return False, "more arrives than is served: latencies are those of a full queue"
    if doubts := replica.doubts(rate):
        return True, f"the chain may be off by more than 5 %: {doubts[0]}"
    return False, "the chain is within 5 % of the simulation for systems like this one"


def _by_chain(table: ReplicaTable, replica: CurveReplica | None, rate: float) -> _MethodResult:
    found = table.analyze(np.array([rate]))
    values = np.array([found.throughput_per_ms[0], found.itl_ms[0], found.ttft_ms[0]])
    above = 0.0 if replica is None else replica.solve(rate).above_measured
    return _MethodResult("chain", measures(found), values, np.zeros(3), above)


def _by_simulation(query: AnalyzeQuery, replica: CurveReplica, rate: float) -> _MethodResult:
    simulated = _simulated(query, replica, rate)
    means = (simulated.throughput_per_ms, simulated.itl, simulated.ttft)
    throughput_per_ms, itl_ms, ttft_ms = values = [_finite(mean.value) for mean in means]
    found = Measures(
        throughput=per_minute(throughput_per_ms),
        dropFraction=shortest(simulated.loss),
        itlAverage=shortest(itl_ms),
        ttftAverage=shortest(ttft_ms),
        waitAverage=shortest(_finite(simulated.wait.value)),
        utilization=shortest(simulated.utilization),
    )
    half_widths = np.array([_finite(mean.half_width) for mean in means])
    is_mixed = len(simulated.ttft_by_priority) > 1
    by_priority = tuple(_finite(mean.value) for mean in simulated.ttft_by_priority if is_mixed)
    above = simulated.above_measured
    return _MethodResult("simulation", found, np.array(values), half_widths, above, by_priority)


def _simulated(query: AnalyzeQuery, replica: CurveReplica, rate: float) -> Estimate:
    """Raises InvalidRequest if a simulation would take too long, before it begins."""
    server = Server(replica.curve, replica.max_batch, replica.max_queue)
    traffic = Traffic(
        rate_per_ms=max(rate, IDLE * replica.max_rate_per_ms),
        in_tokens=replica.shape.in_tokens,
        out_tokens=replica.shape.out_tokens,
        arrival_scv=query.arrival_scv,
        in_scv=query.in_tokens_scv,
        out_scv=replica.out_scv,
        shares=tuple(query.priority_shares) or (1.0,),
    )
    requests = query.requests
    if "requests" not in query.model_fields_set:
        fitting = MAX_EVENTS // num_events(server, traffic, 1)
        requests = max(min(requests, fitting), LEAST_REQUESTS)
    if (events := num_events(server, traffic, requests)) > MAX_EVENTS:
        message = (
            f"{requests} take {events} events to simulate, more than {MAX_EVENTS}; ask for fewer "
            "or for shorter prompts, give the curve a larger chunkTokens, or take method chain"
        )
        raise InvalidRequest([Fault("requests", message)])
    simulated = estimate(server, traffic, requests, query.seed)
    if not np.isfinite(simulated.ttft.value):
        message = f"of {requests} simulated none is answered at this rate: lower arrivalRate"
        raise InvalidRequest([Fault("requests", message)])
    return simulated


def _finite(value: float) -> float:
    """Returns the value, or 0 for a mean without samples, which is NaN."""
    return value if np.isfinite(value) else 0.0


def _factors(
    table: ReplicaTable, replica: CurveReplica | None, perf: PerfData, rate: float
) -> FloatArray | None:
    """Returns lower and upper bounds relative to the value, [2, 3]; None if no error is known."""
    rng = np.random.default_rng(0)
    if replica is not None:
        if not replica.curve.has_errors:
            return None
        chains = [_with(replica, replica.curve)]
        chains += [_with(replica, sampled(replica.curve, rng)) for _ in range(SAMPLES)]
        solved = [chain.solve(rate) for chain in chains]
        values = np.array([(each.throughput_per_ms, each.itl_ms, each.ttft_ms) for each in solved])
    else:
        samples = _sampled_lines(table, perf, rng)
        if samples is None:
            return None
        found = samples.analyze(np.full(len(samples), rate))
        values = np.stack([found.throughput_per_ms, found.itl_ms, found.ttft_ms], axis=1)
    return log_normal(values)


def log_normal(values: FloatArray) -> FloatArray:
    """Returns lower and upper 95 % bounds relative to the first row of values, from the other rows.
    Uses logarithms, because latencies near capacity are skewed."""
    logs = np.log(np.maximum(values[1:], 1e-300) / np.maximum(values[0], 1e-300))
    middle, half = logs.mean(axis=0), IN_95 * logs.std(axis=0, ddof=1)
    factors: FloatArray = np.exp(np.clip([middle - half, middle + half], -MOST_LOG, MOST_LOG))
    factors[0], factors[1] = np.minimum(factors[0], 1.0), np.maximum(factors[1], 1.0)
    return factors


def _with(replica: CurveReplica, curve: StepCurve) -> CurveReplica:
    """Returns the replica with another curve and at most SAMPLED_ROWS rows."""
    rows = min(replica.max_batch, SAMPLED_ROWS)
    return CurveReplica(curve, replica.shape, replica.out_scv, rows, replica.max_queue)


def sampled(curve: StepCurve, rng: np.random.Generator) -> StepCurve:
    """Returns a curve drawn within the standard errors, kept monotone."""
    speed = max(1 + curve.speed_error * rng.standard_normal(), LEAST_SPEED)

    def draw(points: Points) -> FloatArray:
        ms, errors = np.array(points.ms), np.array(points.errors_ms)
        return speed * np.maximum(ms + errors * rng.standard_normal(ms.size), LEAST_SPEED * ms)

    decode_ms = np.maximum.accumulate(draw(curve.decode))
    token_ms = draw(curve.prompt_token)
    overhead = curve.overhead
    if overhead is not NO_OVERHEAD:
        overhead = replace(overhead, ms=tuple(draw(overhead).tolist()))
    return replace(
        curve,
        decode=replace(curve.decode, ms=tuple(decode_ms.tolist())),
        prompt_token=replace(curve.prompt_token, ms=tuple(token_ms.tolist())),
        overhead=overhead,
        handling_ms=speed * curve.handling_ms,
    )


def _sampled_lines(
    table: ReplicaTable, perf: PerfData, rng: np.random.Generator
) -> ReplicaTable | None:
    """Returns the replica with the given parameters, then with drawn ones; None without errors."""
    decode, prefill = perf.decode_parms, perf.prefill_parms
    errors = {
        "alpha_ms": decode.alpha_error,
        "beta_ms": decode.beta_error,
        "gamma_ms": prefill.gamma_error,
        "delta_ms": prefill.delta_error,
    }
    known_errors = {name: error for name, error in errors.items() if error}
    if not known_errors or perf.iteration_parms:
        return None
    samples = table.take(np.zeros(SAMPLES + 1, dtype=np.int64))
    for name, error in known_errors.items():
        values = getattr(samples, name)
        values[1:] = np.maximum(
            values[1:] + error * rng.standard_normal(SAMPLES), LEAST_SPEED * values[1:]
        )
    return samples


def _interval(result: _MethodResult, factors: FloatArray | None) -> Interval:
    """Returns the interval that covers both the method and the parameters."""
    down, up = np.zeros((2, 3)) if factors is None else np.abs(factors - 1)
    values, half_widths = result.values, result.half_widths
    low = np.maximum(values - np.hypot(half_widths, values * down), 0.0)
    high = values + np.hypot(half_widths, values * up)
    return {
        "throughput": {"low": per_minute(low[0]), "high": per_minute(high[0])},
        "itlAverage": {"low": shortest(low[1]), "high": shortest(high[1])},
        "ttftAverage": {"low": shortest(low[2]), "high": shortest(high[2])},
    }


def _doubts(
    query: AnalyzeQuery, replica: CurveReplica | None, rate: float, result: _MethodResult
) -> Iterator[str]:
    if replica is None:
        return
    if result.method == "chain":
        for doubt in replica.doubts(rate):
            yield f"the chain may be off by more than 5 %: {doubt}; method simulation tells"
        if not query.is_simple:
            yield "the chain takes arrivals for Poisson, and prompts and priorities for equal"
    if result.above > OFTEN:
        yield (
            f"steps were measured with up to {replica.curve.measured_rows:g} rows, and "
            f"{result.above:.0%} of the time there are more: beyond, the curve is extrapolated"
        )


def _wide(interval: Interval | None, result: _MethodResult, load: float) -> Iterator[str]:
    if interval is None:
        return
    for name, bounds, value in (
        ("ITL", interval["itlAverage"], result.measures["itlAverage"]),
        ("TTFT", interval["ttftAverage"], result.measures["ttftAverage"]),
    ):
        half = (bounds["high"] - bounds["low"]) / 2
        if half > WIDE * value:
            yield (
                f"{name} is uncertain by {half / max(value, 1e-300):.0%}: at {load:.0%} of "
                "capacity it depends on small differences in speed"
            )
