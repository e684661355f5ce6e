"""Pipelines whose ranks are threads of the test's process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

from inference_api.engine.loading.checkpoint import load_config
from inference_api.engine.options import EngineOptions
from inference_api.engine.pipeline.parts import part_runners
from inference_api.engine.pipeline.pipeline_runner import PipelineRunner
from inference_api.engine.pipeline.rank_worker import RankWorker
from inference_api.engine.pipeline.ring import Ring
from inference_api.engine.pipeline.splits import Split
from tests.ports import free_port

TIMEOUT_S = 60.0


def start_pipeline(
    folder: Path, options: EngineOptions, split: Split
) -> tuple[PipelineRunner, Sequence[Thread]]:
    """Loaded; and the other ranks, which end when it is closed."""
    port = free_port()

    def join(rank: int, hidden_size: int) -> Ring:
        address = f"tcp://127.0.0.1:{port}?rank={rank}&world_size={len(split)}"
        return Ring.join(address, hidden_size, TIMEOUT_S)

    def work(rank: int) -> None:
        ring = join(rank, load_config(folder).hidden_size)
        RankWorker(ring, part_runners(folder, options, local_ranks=1)).run()

    threads = [Thread(target=work, args=(rank,)) for rank in range(1, len(split))]
    for thread in threads:
        thread.start()
    make_runner = part_runners(folder, options, local_ranks=1)  # each has kernels of its own
    runner = PipelineRunner(make_runner, split, partial(join, 0))
    try:
        runner.load()
    except BaseException:
        runner.close()
        raise
    return runner, threads


@contextmanager
def pipeline(folder: Path, options: EngineOptions, split: Split) -> Iterator[PipelineRunner]:
    runner, threads = start_pipeline(folder, options, split)
    try:
        yield runner
    finally:
        runner.close()
        for thread in threads:
            thread.join()
