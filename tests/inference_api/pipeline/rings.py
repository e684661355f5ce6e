"""Pipelines whose ranks are threads of the test's process."""

from functools import partial
from pathlib import Path
from threading import Thread

from inference_api.loading.checkpoint import load_config
from inference_api.loading.options import EngineOptions
from inference_api.pipeline.rank_runners import part_runners
from inference_api.pipeline.rank_worker import RankWorker
from inference_api.pipeline.ring import Ring
from inference_api.pipeline.runner import PipelineRunner
from inference_api.pipeline.splits import Split
from tests.ports import free_port

TIMEOUT_S = 60.0


def make_pipeline(folder: Path, options: EngineOptions, split: Split) -> PipelineRunner:
    """To be loaded. The other ranks are there, and end when it is closed."""
    port, hidden_size = free_port(), load_config(folder).hidden_size

    def join(rank: int, hidden_size: int) -> Ring:
        address = f"tcp://127.0.0.1:{port}?rank={rank}&world_size={len(split)}"
        return Ring.join(address, hidden_size, TIMEOUT_S)

    def work(rank: int) -> None:
        # Each has kernels of its own.
        RankWorker(join(rank, hidden_size), part_runners(folder, options, local_ranks=1)).run()

    make_runner = part_runners(folder, options, local_ranks=1)
    runner = PipelineRunner(make_runner, split, partial(join, 0))
    for rank in range(1, len(split)):
        Thread(target=work, args=(rank,), name=f"rank-{rank}", daemon=True).start()
    return runner
