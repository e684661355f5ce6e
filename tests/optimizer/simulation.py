"""Two simulations of a replica that know nothing of the optimizer's formulas.

`simulate_chains`: the model's own birth-death process, event by event, many at once. It tests the
algebra. `ContinuousBatching`: a server token by token, with deterministic step times. It tests
the assumptions; `python -m tests.optimizer.simulation` prints the errors as docs/optimizer.md
has them.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.numerics import FloatArray
from tests.optimizer.support import replica


@dataclass(frozen=True)
class Effort:
    """`events` counted in each of `copies` independent runs of a process."""

    events: int
    copies: int
    seed: int


@dataclass(frozen=True)
class ChainRun:
    """Time averages per process."""

    throughput_per_ms: FloatArray
    wait_ms: FloatArray
    service_ms: FloatArray


def simulate_chains(
    service_ms: FloatArray,
    rate_per_ms: FloatArray,
    max_batch: npt.NDArray[np.int64],
    max_queue: npt.NDArray[np.int64],
    effort: Effort,
) -> ChainRun:
    """Arrivals and departures of every process, after as many again to forget the empty start.

    `service_ms[p, n]` is the service time with n in service. The integral of the queue's length
    is the sum of the waits, path by path, and that of the number in service the sum of the
    services; over the departures they are the mean times.
    """
    rng = np.random.default_rng(effort.seed)
    processes = rate_per_ms.size
    of = np.repeat(np.arange(processes), effort.copies)
    arrival, batch = rate_per_ms[of], max_batch[of]
    capacity = batch + max_queue[of]
    state = np.zeros(of.size, dtype=np.int64)
    elapsed, waiting, serving, left = (np.zeros(of.size) for _ in range(4))
    for event in range(2 * effort.events):
        busy = np.minimum(state, batch)
        leaving = busy / service_ms[of, busy]
        entering = np.where(state < capacity, arrival, 0.0)
        total = entering + leaving
        if event >= effort.events:
            dwell = rng.standard_exponential(of.size) / total
            elapsed += dwell
            waiting += dwell * (state - busy)
            serving += dwell * busy
        departs = rng.random(of.size) * total < leaving
        if event >= effort.events:
            left += departs
        state += np.where(departs, -1, 1)

    def per_process(values: FloatArray) -> FloatArray:
        total_by_process: FloatArray = values.reshape(processes, effort.copies).sum(axis=1)
        return total_by_process

    departures = per_process(left)
    return ChainRun(
        departures / per_process(elapsed),
        per_process(waiting) / departures,
        per_process(serving) / departures,
    )


@dataclass(frozen=True)
class Shape:
    """A replica and its requests, for the token-by-token simulation."""

    name: str
    alpha: float
    beta: float
    gamma: float
    delta: float
    in_tokens: int
    out_tokens: int
    batch: int


@dataclass(frozen=True)
class Measured:
    throughput_per_ms: float
    ttft_ms: float
    itl_ms: float


def serve_token_by_token(shape: Shape, rate_per_ms: float, requests: int, seed: int) -> Measured:
    """A continuous-batching server: whole prompts first, then one token for all, step by step.

    Poisson arrivals queue first come first served for `batch` places. Newly admitted prompts are
    prefilled together, gamma + delta x prompt tokens, while decoding rests; a decode step of n
    requests takes alpha + beta n. Prefill yields the first token. The first tenth is not counted.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_ms, requests))
    first_token, finish = np.zeros(requests), np.zeros(requests)
    running: deque[tuple[int, int]] = deque()  # (decode step at which it ends, request), in order
    clock, step, upcoming = 0.0, 0, 0
    while upcoming < requests or running:
        if not running:
            clock = max(clock, arrivals[upcoming])
        admitted: list[int] = []
        while (
            upcoming < requests
            and arrivals[upcoming] <= clock
            and len(running) + len(admitted) < shape.batch
        ):
            admitted.append(upcoming)
            upcoming += 1
        if admitted:
            clock += shape.gamma + shape.delta * shape.in_tokens * len(admitted)
            for request in admitted:
                first_token[request] = clock
                running.append((step + shape.out_tokens - 1, request))
        else:
            clock += shape.alpha + shape.beta * len(running)
            step += 1
        while running and running[0][0] <= step:
            finish[running.popleft()[1]] = clock
    counted = slice(requests // 10, None)
    itl_ms = (finish - first_token)[counted] / (shape.out_tokens - 1)
    span_ms = finish.max() - arrivals[requests // 10]
    return Measured(
        (requests - requests // 10) / span_ms,
        float((first_token - arrivals)[counted].mean()),
        float(itl_ms.mean()),
    )


SHAPES = (
    Shape("chat, small model", 8, 0.15, 15, 0.01, 256, 128, 32),
    Shape("chat, large model", 25, 0.6, 60, 0.05, 512, 256, 16),
    Shape("long prompts", 20, 0.4, 40, 0.08, 3000, 64, 16),
    Shape("long answers", 15, 0.3, 20, 0.02, 128, 1000, 24),
)
LOADS = (0.3, 0.6, 0.9)
REQUESTS, SEED = 6000, 11


def comparison() -> list[tuple[str, float, float, float, float, float, float]]:
    """(shape, load, utilisation, TTFT simulated and modelled, ITL simulated and modelled)."""
    rows = []
    for shape in SHAPES:
        one = replica(
            alpha=shape.alpha, beta=shape.beta, gamma=shape.gamma, delta=shape.delta,
            in_tokens=shape.in_tokens,
            out_tokens=shape.out_tokens, batch=shape.batch, queue=10 * shape.batch,
        )  # fmt: skip
        for load in LOADS:
            rate = load * one.max_rate_per_ms()
            seen = serve_token_by_token(shape, float(rate[0]), REQUESTS, SEED)
            model = one.analyze(rate)
            rows.append(
                (shape.name, load, float(model.utilization[0]), seen.ttft_ms,
                 float(model.ttft_ms[0]), seen.itl_ms, float(model.itl_ms[0]))
            )  # fmt: skip
    return rows


def table() -> list[str]:
    """The comparison as rows of a Markdown table."""
    return [
        f"| {name} | {load:.1f} | {busy:.2f} | {ttft:.0f} | {ttft_model:.0f} | "
        f"{100 * (ttft_model / ttft - 1):+.0f} % | {itl:.2f} | {itl_model:.2f} | "
        f"{100 * (itl_model / itl - 1):+.1f} % |"
        for name, load, busy, ttft, ttft_model, itl, itl_model in comparison()
    ]


if __name__ == "__main__":
    print("\n".join(table()))
