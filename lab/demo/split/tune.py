"""Find the split of a model over unequal processes by measuring: start, measure, tell, ask again.

    python -m lab.demo.split                      # the embedded model, no service needed
    python -m lab.demo.split --url http://127.0.0.1:8001 --session llama-3-nodes
    python -m lab.demo.split --model var/models/random-110m --exhaustive

Three ranks under torchrun serve the model as a pipeline, held to 100, 50 and 25 % of a core
(all a little less where there are few cores). It ends when further trials stop paying or after
--trials, and prints the setting of each engine. --exhaustive then measures every split there is,
the best of them again, and the best of those in turn with what was found.
"""

import argparse
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import nlargest
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Protocol

from tqdm import tqdm
from werkzeug.serving import make_server

from inference_api.pipeline.split_search import SplitSearch
from inference_api.settings import EMBEDDED_MODEL
from lab.demo.split.engine import Load, PipelineEngine
from lab.kit.shares import choose_limiter
from weights.app import create_app
from weights.settings import Settings
from weights.store.memory_store import MemoryStore

CORES_FOR_RANKS = 0.85  # of all cores; the rest is for whoever measures
FINALISTS = 8  # of all splits, by one measurement each
COMPARISONS = 4  # times the rounds that choose the best of them
HEADER = f"{'trial':>5}  {'layers':<16}{'tokens/s':>10}{'best':>10}  proposed by"

Layers = tuple[int, ...]  # of each rank


class Engine(Protocol):
    num_layers: int

    def measure(self, layers: Layers) -> float:
        """Tokens/s with this split."""


def main() -> int:
    arguments = _parse()
    shares = fitting([float(share) for share in arguments.shares.split(",")])
    rows = 1 if arguments.objective == "latency" else arguments.rows
    load = Load(rows, arguments.seconds)
    limiter = choose_limiter()
    print(f"shares of a core: {', '.join(f'{s:.0%}' for s in shares)}, by {limiter.name}")
    with weights_service(arguments.url) as url, PipelineEngine(
        arguments.model.resolve(), shares, load, limiter
    ) as engine:  # fmt: skip
        search = SplitSearch(url, arguments.session, len(shares), engine.num_layers, arguments.seed)
        found = tune(search, engine, arguments.trials)
        report(search)
        if arguments.exhaustive:
            compare(engine, found, arguments)
    return 0


def tune(search: SplitSearch, engine: Engine, max_trials: int) -> Layers:
    """Measure until further trials stop paying; the best split when noise is accounted for."""
    print(HEADER)
    best = 0.0
    for trial in range(1, max_trials + 1):
        layers, model = search.ask(trial)
        tokens_per_s = engine.measure(layers)
        search.tell(layers, tokens_per_s)
        best = max(best, tokens_per_s)
        row = f"{trial:>5}  {_dashed(layers):<16}{tokens_per_s:>10.1f}{best:>10.1f}  {model}"
        print(row, flush=True)
        if search.has_converged():
            break
    return search.best()


def report(search: SplitSearch) -> None:
    """Prints the partition found, its certainty, and how to set it in each engine."""
    overview, split = search.overview(), search.partition()
    best, convergence = overview["noise_aware_best"], overview["convergence"]
    low, high = best["interval_90"]
    interval = "" if low is None or high is None else f" (90 %: {low:.1f} to {high:.1f})"
    print(f"\nbest: {_dashed(split['layers_per_node'])} layers, "
          f"{best['performance_metric']:.1f} tokens/s{interval}")  # fmt: skip
    print(f"{'converged' if convergence['converged'] else 'not converged'}: "
          f"{convergence['reason']}")  # fmt: skip
    engines = split["engines"]
    print(f"vLLM       VLLM_PP_LAYER_PARTITION={engines['vllm']['VLLM_PP_LAYER_PARTITION']}")
    print(f"SGLang     SGLANG_PP_LAYER_PARTITION={engines['sglang']['SGLANG_PP_LAYER_PARTITION']}")
    print(f"hearth     SPLIT={engines['pipeline']['SPLIT']}")
    print(f"llama.cpp  --n-gpu-layers 999 --tensor-split {engines['llama_cpp']['--tensor-split']}")
    for shard in engines["exo"]["shard_assignments"]:
        print(f"exo        {' '.join(f'{name}={value}' for name, value in shard.items())}")


def compare(engine: Engine, found: Layers, arguments: argparse.Namespace) -> None:
    """Search exhaustively, and measure what that finds in turn with what was `found`.

    The best of many noisy measurements is mostly the luckiest. So the FINALISTS best of one
    measurement each are measured again, and the best of those is compared by other measurements
    than those that chose it.
    """
    splits = list(every_split(engine.num_layers, len(found)))
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


def measured_in_turn(engine: Engine, splits: Iterable[Layers], rounds: int) -> dict[Layers, float]:
    """Tokens/s of each: medians of rounds, so that a machine that slows down does so for all."""
    measured: dict[Layers, list[float]] = {split: [] for split in splits}
    for split in tqdm(list(measured) * rounds, unit="trial", leave=False, disable=None):
        measured[split].append(engine.measure(split))
    medians = {split: median(values) for split, values in measured.items()}
    for split, tokens_per_s in medians.items():
        print(f"{'':<7}{_dashed(split):<16}{tokens_per_s:>10.1f} tokens/s", flush=True)
    return medians


def every_split(num_layers: int, nodes: int) -> Iterator[Layers]:
    """All ways to give each of `nodes` at least one."""
    for cuts in combinations(range(1, num_layers), nodes - 1):
        yield tuple(b - a for a, b in pairwise([0, *cuts, num_layers]))


@contextmanager
def weights_service(url: str | None) -> Iterator[str]:
    """The address of a weights service: the one given, or one of our own that forgets."""
    if url is not None:
        yield url.rstrip("/")
        return
    server = make_server("127.0.0.1", 0, create_app(Settings(), MemoryStore()), threaded=True)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # no line per request in the table
    thread = Thread(target=server.serve_forever, name="weights-service")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fitting(shares: list[float]) -> list[float]:
    """The same ratios, lowered until all ranks together fit this machine's cores."""
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
    add("--url", help="of a weights service; default: one in this process")
    add("--session", default="tune-partition", help="its name there (default: %(default)s)")
    add("--seed", type=int, help="makes the proposals repeatable")
    add("--exhaustive", action="store_true", help="then measure every split, and compare")
    add("--rounds", type=int, default=3, help="of --exhaustive (default: %(default)s)")
    return parser.parse_args()
