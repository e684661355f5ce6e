"""Runs one rank of the pipeline, with the engine's own code and one kernel thread.

Rank 0 reads one job per line from its input and writes one answer per line, both as JSON.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels
from inference_api.loading.checkpoint import load_config
from inference_api.loading.options import EngineOptions
from inference_api.pipeline.rank_runners import part_runners
from inference_api.pipeline.rank_worker import RankWorker
from inference_api.pipeline.ranks import equal_split, load_rank_settings
from inference_api.pipeline.ring import Ring
from inference_api.pipeline.runner import PipelineRunner

CONTEXT_TOKENS = 64
SILENCE_S = 3600.0  # longest wait for a job


@dataclass(frozen=True, slots=True)
class Job:
    """A measurement: decode `rows` user rows with `layers[rank]` layers per rank for about
    `seconds`, in steps of `parts` parts; None means the best number of parts."""

    layers: list[int]
    rows: int
    seconds: float
    parts: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of a pipeline; see lab.demo.split.")
    parser.add_argument("model", type=Path)
    parser.add_argument("rows", type=int, help="at most")
    arguments = parser.parse_args()
    folder: Path = arguments.model
    try:
        config, ranks = load_config(folder), load_rank_settings()
    except StartupError as error:
        sys.exit(str(error))
    options = EngineOptions(device="cpu", max_rows=arguments.rows, max_seq_len=CONTEXT_TOKENS)
    make_runner = part_runners(folder, options, ranks.world_size, cache(lambda _: Kernels(1)))
    join = partial(Ring.join, ranks, timeout_s=SILENCE_S)
    if ranks.rank > 0:
        ring = join(config.hidden_size)
        _write_ready(ranks.rank, config.num_layers)
        RankWorker(ring, make_runner).run()
        return
    split = equal_split(config.num_layers, ranks.world_size)
    runner = PipelineRunner(make_runner, split, join)
    runner.load()
    _write_ready(ranks.rank, config.num_layers)
    for job in _jobs():
        if not runner.set_split(tuple(job.layers)):
            sys.exit(f"{job.layers} do not fit into memory")
        if job.parts is None:
            runner.choose_parts()
        else:
            runner._rounds.parts_at_all_rows = job.parts
        _write({"tokens_per_s": runner.tokens_per_s(job.seconds, job.rows)})
    runner.close()


def _jobs() -> Iterator[Job]:
    for line in sys.stdin:
        yield Job(**json.loads(line))


def _write_ready(rank: int, num_layers: int) -> None:
    _write({"rank": rank, "pid": os.getpid(), "num_layers": num_layers})


def _write(message: dict[str, object]) -> None:
    """Writes in one call, because the ranks share the output."""
    os.write(sys.stdout.fileno(), f"{json.dumps(message)}\n".encode())


if __name__ == "__main__":
    main()
