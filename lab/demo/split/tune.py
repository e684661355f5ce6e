"""Find the best split of a model over unequal processes by measuring.

    python -m lab.demo.split
    python -m lab.demo.split --model var/models/random-110m --exhaustive

Three ranks serve the model as a pipeline, limited to 100, 50 and 25 % of a core, or less on
machines with few cores. The search ends when further trials do not pay, or after --trials.
--exhaustive then measures every split, measures the best of them again, and compares the best
of these with the split that the search found.
"""

import argparse
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from heapq import nlargest
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tqdm import tqdm

from inference_api.settings import EMBEDDED_MODEL
from lab.demo.split.engine import Load, PipelineEngine
from lab.kit.shares import choose_limiter
from weights.drivers import Driver
from weights.drivers.loop import Search, drive
from weights.partition import Layers
from weights.samplers import SAMPLERS
from weights.service import WeightsService
from weights.store.sqlite_store import SqliteStore

CORES_FOR_RANKS = 0.85  # share of all cores; the rest is for the search itself
FINALISTS = 8  # best splits by one measurement each, which are measured again
COMPARISONS = 4  # factor on --rounds in the final comparison


def main() -> int:
    arguments = _parse()
    shares = fitting([float(share) for share in arguments.shares.split(",")])
    rows = 1 if arguments.objective == "latency" else arguments.rows
    load = Load(rows, arguments.seconds)
    limiter = choose_limiter()
    print(f"shares of a core: {', '.join(f'{s:.0%}' for s in shares)}, by {limiter.name}")
    with PipelineEngine(arguments.model.resolve(), shares, load, limiter) as engine:
        found = search(engine, arguments.trials)
        if arguments.exhaustive:
            compare(engine, found, arguments)
    return 0


def search(engine: Driver, max_trials: int) -> Layers:
    """Returns the best split that `max_trials` trials find, by the search of `SPLIT=auto`. Keeps no
    measurements. Raises DriveError."""
    with TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "weights.db")
        with closing(WeightsService(store, SAMPLERS["adaptive"])) as service:
            asked = Search(service, "split", engine.ring)
            return drive(engine, asked, max_trials, partial(print, flush=True))


def compare(engine: Driver, found: Layers, arguments: argparse.Namespace) -> None:
    """Searches exhaustively, and compares the best split with `found`, measuring both in turn.

    The best of many noisy measurements is mostly the luckiest one. So the FINALISTS best splits are
    measured again, and the best of these is compared by new measurements.
    """
    splits = list(every_split(engine.ring.num_layers, len(found)))
    print(f"\nexhaustive: {len(splits)} splits", flush=True)
    once = measured_in_turn(engine, splits, 1)
    finalists = nlargest(FINALISTS, once, key=once.__getitem__)
    print(f"\nthe best of them, medians of {arguments.rounds} rounds in turn", flush=True)
    again = measured_in_turn(engine, finalists, arguments.rounds)
    best = max(again, key=again.__getitem__)
    rounds = COMPARISONS * arguments.rounds
    print(f"\nits best and what was found, medians of {rounds} rounds in turn", flush=True)
    compared = measured_in_turn(engine, [best, found], rounds)
    print(f"found  {compared[found] / compared[best]:.1%} of the best")


def measured_in_turn(engine: Driver, splits: Iterable[Layers], rounds: int) -> dict[Layers, float]:
    """Returns each split's median tokens/s over rounds. Splits take turns, so that a machine that
    slows down slows all."""
    measured: dict[Layers, list[float]] = {split: [] for split in splits}
    for split in tqdm(list(measured) * rounds, unit="trial", leave=False, disable=None):
        measured[split].append(engine.measure(split))
    medians = {split: median(values) for split, values in measured.items()}
    for split, tokens_per_s in medians.items():
        print(f"{'':<7}{_dashed(split):<16}{tokens_per_s:>10.1f} tokens/s", flush=True)
    return medians


def every_split(num_layers: int, nodes: int) -> Iterator[Layers]:
    """Yields all splits that give each of `nodes` at least one layer."""
    for cuts in combinations(range(1, num_layers), nodes - 1):
        yield tuple(b - a for a, b in pairwise([0, *cuts, num_layers]))


def fitting(shares: list[float]) -> list[float]:
    """Returns shares with the same ratios, lowered so that all ranks fit this machine's cores."""
    room = CORES_FOR_RANKS * len(os.sched_getaffinity(0))
    return [share * min(1.0, room / sum(shares)) for share in shares]


def _dashed(layers: Iterable[int]) -> str:
    return "-".join(map(str, layers))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, default=EMBEDDED_MODEL, help="a folder")
    add("--shares", default="1,0.5,0.25", help="of a core, one per rank (default: %(default)s)")
    add("--objective", choices=("throughput", "latency"), default="throughput",
        help="of many user rows, or of a single one")  # fmt: skip
    add("--rows", type=int, default=32, help="user rows (default: %(default)s)")
    add("--seconds", type=float, default=1.0, help="per measurement (default: %(default)s)")
    add("--trials", type=int, default=20, help="at most (default: %(default)s)")
    add("--exhaustive", action="store_true", help="then measure every split, and compare")
    add("--rounds", type=int, default=3, help="of --exhaustive (default: %(default)s)")
    return parser.parse_args()
