"""Estimates latencies and throughput of a simulated replica, with 95 % intervals. Pure: any thread.

Requests that share a queue are not independent, so intervals use Student's t over the means of
blocks of neighbours (batch means, Conway, Management Science 10, 1963). The first tenth of requests
does not count.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.numerics import BoolArray, FloatArray, scipy
from optimizer.simulation.server import Served, Server, serve
from optimizer.simulation.traffic import Requests, Traffic, draw

MAX_EVENTS = 2_000_000  # about ten seconds of work
LEAST_REQUESTS = 1_000
BLOCKS, WARM_UP = 20, 10  # number of blocks; one in WARM_UP requests is warm-up
LEAST_GAP_MS = 1e-6  # least gap for rates, because given arrivals may coincide
EVENTS_OF_REQUEST = 3  # arrival, start, end


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, with half the width of its 95 % interval; both NaN without samples."""

    value: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Times in ms. `itl` is a mean over tokens; `wait` is the time until a row was free."""

    offered_per_ms: float  # simulated arrivals, which differ from the given rate by chance
    throughput_per_ms: Mean
    loss: float
    ttft: Mean
    itl: Mean
    wait: Mean
    utilization: float
    ttft_by_priority: tuple[Mean, ...]
    above_measured: float  # share of time with more rows decoding than steps were measured with


def num_events(server: Server, traffic: Traffic, requests: int) -> int:
    """Returns an approximate bound of a simulation's events, before lengths are drawn."""
    steps = server.max_steps_of(traffic.in_tokens * (1 + traffic.in_scv))
    return requests * (EVENTS_OF_REQUEST + steps)


def estimate(server: Server, traffic: Traffic, requests: int, seed: int) -> Estimate:
    """Returns the estimate from `requests` random requests. Equal seeds give equal results."""
    drawn = draw(traffic, requests, seed)
    served = run(server, drawn)
    return measured(server, drawn, served, requests // WARM_UP, len(traffic.shares))


def run(server: Server, drawn: Requests) -> Served:
    """Returns the times of the requests, which are handled before they are queued."""
    waits = waits_ms(drawn.arrival_ms, server.curve.handling_ms)
    return serve(server, replace(drawn, arrival_ms=drawn.arrival_ms + waits))


def measured(
    server: Server, drawn: Requests, served: Served, warmup: int, priorities: int = 1
) -> Estimate:
    """Returns the estimate from requests and their times. The first `warmup` do not count."""
    counted = np.arange(drawn.arrival_ms.size) >= warmup
    answered = counted & ~np.isnan(served.end_ms)
    overhead_ms = server.curve.overhead.at(served.rows)
    ttft_ms = served.first_token_ms - drawn.arrival_ms + overhead_ms
    held_ms = served.end_ms - served.admitted_ms
    gaps = np.maximum(drawn.out_tokens - 1, 0)
    decode_ms = served.end_ms - served.first_token_ms
    span_ms = max(float(np.ptp(drawn.arrival_ms[counted])), LEAST_GAP_MS)
    gaps_ms = np.diff(drawn.arrival_ms, prepend=0.0)[counted]
    gaps_ms = np.maximum(gaps_ms, LEAST_GAP_MS)
    return Estimate(
        offered_per_ms=float(counted.sum()) / gaps_ms.sum(),
        throughput_per_ms=_ratio(answered[counted].astype(np.float64), gaps_ms),
        loss=1 - float(answered.sum() / counted.sum()),
        ttft=_mean(ttft_ms[answered]),
        itl=_ratio(decode_ms[answered & (gaps > 0)], gaps[answered & (gaps > 0)]),
        wait=_mean((served.admitted_ms - drawn.arrival_ms)[answered]),
        utilization=min(float(held_ms[answered].sum()) / span_ms / server.max_batch, 1.0),
        ttft_by_priority=tuple(
            _mean(ttft_ms[answered & (drawn.priority == priority)])
            for priority in range(priorities)
        ),
        above_measured=_share_above(served, answered, server.curve.measured_rows),
    )


def _share_above(served: Served, answered: BoolArray, rows: float) -> float:
    """Returns the share of time in which more than `rows` were decoding."""
    begun, ended = served.first_token_ms[answered], served.end_ms[answered]
    times = np.concatenate((begun, ended))
    changes = np.concatenate((np.ones(begun.size), -np.ones(ended.size)))
    order = np.argsort(times, kind="stable")
    decoding = np.cumsum(changes[order])[:-1]
    lasting = np.diff(times[order])
    total = float(lasting.sum())
    return float(lasting[decoding > rows].sum()) / total if total > 0 else 0.0


def _mean(values: FloatArray) -> Mean:
    return _ratio(values, np.ones(values.size))


def _ratio(values: FloatArray, weights: Sequence[float] | FloatArray) -> Mean:
    """Returns the sum of `values` over the sum of `weights`, with an interval from blocks."""
    over = np.asarray(weights, dtype=np.float64)
    if values.size < BLOCKS:
        value = float(values.sum() / over.sum()) if values.size else float("nan")
        return Mean(value, float("nan") if not values.size else value)
    value = float(values.sum() / over.sum())
    parts = [
        float(block.sum()) / max(float(weight.sum()), 1e-300)
        for block, weight in zip(
            np.array_split(values, BLOCKS), np.array_split(over, BLOCKS), strict=True
        )
    ]
    t_95 = float(scipy.special.stdtrit(BLOCKS - 1, 0.975))
    return Mean(value, t_95 * float(np.std(parts, ddof=1)) / BLOCKS**0.5)


def waits_ms(arrival_ms: FloatArray, handling_ms: float) -> FloatArray:
    """Returns how much longer the handling of each request (reading, parsing, encoding) takes than
    without other requests. Arrivals must ascend.

    Requests that are handled at the same time share one processor, or an interpreter's lock, in
    equal parts (processor sharing, Kleinrock, JACM 14, 1967). All have equal work, so they finish
    in the order of arrival.
    """
    if not handling_ms or np.diff(arrival_ms).min(initial=math.inf) >= handling_ms:
        return np.zeros(arrival_ms.size)
    done_ms = []
    until: deque[float] = deque()  # when each finishes, on a clock of shares
    clock_ms = now_ms = 0.0
    for next_ms in [*arrival_ms.tolist(), math.inf]:
        while until and (end_ms := now_ms + (until[0] - clock_ms) * len(until)) <= next_ms:
            clock_ms, now_ms = until.popleft(), end_ms
            done_ms.append(end_ms)
        if until:
            clock_ms += (next_ms - now_ms) / len(until)
        now_ms = next_ms
        until.append(clock_ms + handling_ms)
    return np.maximum(np.array(done_ms) - arrival_ms - handling_ms, 0.0)
