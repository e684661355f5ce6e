"""Compares the optimizer's chain with the token-level simulation, on random systems.

    python -m lab.benches simulator [--systems 200] [--requests 60000] [--seed 1]

Every system has a random service curve, batch, shape of requests, spread of output lengths, and a
load below 90 % of its capacity. The output is the chain's errors in mean TTFT, mean ITL and
throughput, for systems that it answers itself (`method: auto`) and, for half as many, for systems
that it would leave to the simulation. A figure counts as beyond 5 % only if the simulation's 95 %
interval confirms it; undecided systems are simulated with more and more requests. The exit status
is 1 if any system of the first kind is beyond. The numbers do not depend on the machine.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.model.curve_chain import CurveReplica
from optimizer.model.curve_rates import Shape
from optimizer.model.step_curve import NO_LIMIT, Points, StepCurve
from optimizer.simulation.estimate import Mean, estimate
from optimizer.simulation.server import Server
from optimizer.simulation.traffic import Traffic

ALLOWED = 0.05
MORE, MOST = 4, 16  # factors on requests while a simulation is undecided: per step, in all
ROWS = (1, 2, 4, 8, 16, 32, 64)
SPREADS = (0.0, 0.25, 1.0, 1.5)

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Loaded:
    """One system under load."""

    replica: CurveReplica
    rate_per_ms: float

    @property
    def load(self) -> float:
        return self.rate_per_ms / self.replica.max_rate_per_ms

    def __str__(self) -> str:
        one, shape = self.replica, self.replica.shape
        return (
            f"{one.max_batch} rows, {shape.in_tokens:g} + {shape.out_tokens:g} tokens, "
            f"spread {one.out_scv:g}, load {self.load:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Error:
    """The chain's relative error, and the relative half width of the simulation's interval."""

    value: float
    uncertain: float

    @property
    def is_beyond(self) -> bool:
        return abs(self.value) - self.uncertain > ALLOWED

    @property
    def is_open(self) -> bool:
        return not self.is_beyond and abs(self.value) > ALLOWED


@dataclass(frozen=True, slots=True)
class Compared:
    system: Loaded
    ttft: Error
    itl: Error
    rate: Error

    @property
    def errors(self) -> tuple[Error, Error, Error]:
        return self.ttft, self.itl, self.rate

    @property
    def is_beyond(self) -> bool:
        return any(error.is_beyond for error in self.errors)


def random_systems(seed: int) -> Iterator[Loaded]:
    """Yields endless systems with bent step times, lengths log-uniform, some with budgets."""
    rng = np.random.default_rng(seed)
    while True:
        one = _random_replica(rng)
        yield Loaded(one, float(rng.uniform(0.1, 0.9)) * one.max_rate_per_ms)


def _random_replica(rng: Rng) -> CurveReplica:
    rows = round(_between(rng, 1, 64))
    first_ms = _between(rng, 1, 30)
    slope_ms, bend = first_ms * _between(rng, 0.005, 0.5), _between(rng, 1, 32)
    ms = tuple(first_ms + slope_ms * (max(n - bend, 0.0) + 0.1 * n) for n in ROWS)
    is_compute_bound = rng.random() < 0.5
    token_ms = (
        slope_ms * _between(rng, 0.05, 1.0)
        if is_compute_bound
        else first_ms * _between(rng, 0.0005, 0.02)
    )
    chunk = float(round(_between(rng, 128, 4096)))
    has_budget = rng.random() < 0.5
    budget = float(round(rows * _between(rng, 1.2, 4) + _between(rng, 16, 512)))
    curve = StepCurve(
        Points(tuple(float(n) for n in ROWS), ms, (0.0,) * len(ROWS)),
        Points((1.0,), (token_ms,), (0.0,)),
        chunk,
        budget if has_budget else NO_LIMIT,
    )
    shape = Shape(int(_between(rng, 8, 2000)), int(_between(rng, 8, 512)))
    return CurveReplica(curve, shape, float(rng.choice(SPREADS)), rows, 10 * rows)


def _between(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def compare(system: Loaded, requests: int, seed: int, most: int = MOST) -> Compared:
    """Returns the chain's errors. Repeats a simulation that finds an error with more requests, up
    to `most` times as many, because near capacity its own interval is too narrow."""
    found = _compared(system, requests, seed)
    times = 1
    while times < most and any(abs(error.value) > ALLOWED for error in found.errors):
        times *= MORE
        found = _compared(system, times * requests, seed)
    return found


def _compared(system: Loaded, requests: int, seed: int) -> Compared:
    one = system.replica
    server = Server(one.curve, one.max_batch, one.max_queue)
    shape = one.shape
    traffic = Traffic(system.rate_per_ms, shape.in_tokens, shape.out_tokens, out_scv=one.out_scv)
    simulated = estimate(server, traffic, requests, seed)
    # Chance changes the rate, which changes latencies much.
    solved = one.solve(simulated.offered_per_ms)
    return Compared(
        system,
        _error(solved.ttft_ms, simulated.ttft),
        _error(solved.itl_ms, simulated.itl),
        _error(solved.throughput_per_ms, simulated.throughput_per_ms),
    )


def _error(predicted: float, simulated: Mean) -> Error:
    return Error(predicted / simulated.value - 1, simulated.half_width / simulated.value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the chain against the simulation.")
    parser.add_argument("--systems", type=int, default=200)
    parser.add_argument("--requests", type=int, default=60_000, help="of each simulation")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    within: list[Compared] = []
    outside: list[Compared] = []
    for number, system in enumerate(random_systems(arguments.seed)):
        holds = not system.replica.doubts(system.rate_per_ms)
        chosen, wanted = (within, arguments.systems) if holds else (outside, arguments.systems // 2)
        if len(chosen) < wanted:
            times = MOST if holds else 1
            chosen.append(compare(system, arguments.requests, arguments.seed + number, times))
        if len(within) == arguments.systems and len(outside) == arguments.systems // 2:
            break
    print("\n".join(table(within, outside)))
    sys.exit(any(one.is_beyond for one in within))


def table(within: list[Compared], outside: list[Compared]) -> list[str]:
    """Returns a Markdown table of the errors, and the systems of the first kind beyond 5 %."""
    lines = [
        "| systems | | median error | 95 % within | worst | beyond 5 % | cannot tell |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, kind in (("the chain answers", within), ("the simulation answers", outside)):
        for measure in ("ttft", "itl", "rate"):
            errors: list[Error] = [getattr(one, measure) for one in kind]
            sizes = [abs(error.value) for error in errors]
            worst = max(errors, key=lambda error: abs(error.value))
            lines.append(
                f"| {name}, {len(kind)} | {measure} | {np.median(sizes):.1%} "
                f"| {np.quantile(sizes, 0.95):.1%} | {worst.value:+.1%} ± {worst.uncertain:.1%} "
                f"| {sum(error.is_beyond for error in errors)} "
                f"| {sum(error.is_open for error in errors)} |"
            )
    for one in within:
        if one.is_beyond:
            sizes_of = ", ".join(f"{e.value:+.1%} ± {e.uncertain:.1%}" for e in one.errors)
            lines.append(f"beyond: {one.system}: TTFT, ITL, rate {sizes_of}")
    return lines
