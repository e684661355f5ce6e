"""Compares equal, found and best splits of a model over unequal ranks: `make bench-pipeline`.

Three ranks with one thread each, limited to 100, 50 and 25 % of a core, or less on machines with
few cores, decode 32 user rows of a Llama with 12 layers. The search is that of `SPLIT=auto`. Then
every split is measured once and the best of them again. Finally the best of these, the found and
the equal split are measured in turn, so that new measurements decide. The bench also shows the gain
of steps in parts, which keep all ranks busy, over whole steps. Nothing else may use the cores.
"""

import argparse
import sys
from heapq import nlargest
from pathlib import Path

from benchmarking.machine import describe_machine
from inference_api.pipeline.ranks import equal_split
from lab.demo.split.engine import Load, PipelineEngine
from lab.demo.split.tune import (
    COMPARISONS,
    FINALISTS,
    every_split,
    fitting,
    measured_in_turn,
    search,
)
from lab.kit.servers import ROOT, exit_on_sigterm
from lab.kit.shares import choose_limiter
from lab.models.random_model import SHAPES, make_random_model
from weights.errors import DriveError

MODEL = ROOT / "var" / "models" / "random-110m"
SHARES = (1.0, 0.5, 0.25)
PARTS = (1, 2, 4, 8)
LEAST_GAIN, LEAST_SHARE_OF_BEST = 1.5, 0.9


def main() -> int:
    exit_on_sigterm()
    try:
        return _compare()
    except DriveError as error:
        sys.exit(str(error))


def _compare() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", type=Path, default=MODEL, help="a folder; default: a random Llama, made first")
    add("--rows", type=int, default=32, help="default: %(default)s")
    add("--seconds", type=float, default=2.0, help="per measurement (default: %(default)s)")
    add("--trials", type=int, default=20, help="of the search, at most (default: %(default)s)")
    add("--rounds", type=int, default=3, help="of what is compared (default: %(default)s)")
    add("--finalists", type=int, default=FINALISTS, help="default: %(default)s")
    arguments = parser.parse_args()
    if arguments.model == MODEL and not (MODEL / "config.json").exists():
        make_random_model(SHAPES["110m"], MODEL)
    print(f"{describe_machine('torch')}\n")
    shares, limiter = fitting(list(SHARES)), choose_limiter()
    print(f"shares of a core: {', '.join(f'{s:.0%}' for s in shares)}, by {limiter.name}\n")
    load = Load(arguments.rows, arguments.seconds)
    with PipelineEngine(arguments.model, shares, load, limiter) as engine:
        return compare(engine, arguments)


def compare(engine: PipelineEngine, arguments: argparse.Namespace) -> int:
    """Returns the exit status, which is 1 if a target is missed."""
    num_layers = engine.ring.num_layers
    equal = equal_split(num_layers, len(SHARES))
    found = search(engine, arguments.trials)
    splits = list(every_split(num_layers, len(SHARES)))
    print(f"\nexhaustive: {len(splits)} splits", flush=True)
    once = measured_in_turn(engine, splits, 1)
    finalists = nlargest(arguments.finalists, once, key=once.__getitem__)
    print(f"\nthe best of them, medians of {arguments.rounds} rounds in turn", flush=True)
    again = measured_in_turn(engine, finalists, arguments.rounds)
    best = max(again, key=again.__getitem__)
    rounds = COMPARISONS * arguments.rounds
    print(f"\nequal, found and best, medians of {rounds} rounds in turn", flush=True)
    last = measured_in_turn(engine, dict.fromkeys([equal, found, best]), rounds)
    print("\nfound, by the parts of a step", flush=True)
    for parts in PARTS:
        print(f"{parts:>9}{engine.measure(found, parts):>24.1f} tokens/s", flush=True)
    gain, share = last[found] / last[equal], last[found] / last[best]
    print(f"\nfound: {gain:.2f} x the equal split (target {LEAST_GAIN}), {share:.1%} of the best "
          f"(target {LEAST_SHARE_OF_BEST:.0%})")  # fmt: skip
    return 0 if gain >= LEAST_GAIN and share >= LEAST_SHARE_OF_BEST else 1
