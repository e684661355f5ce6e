"""Pipelines whose ranks are threads of the test's process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread

from inference_api.loading.checkpoint import load_config
from inference_api.loading.options import EngineOptions
from inference_api.pipeline.rank_runners import MakeRunner, part_runners
from inference_api.pipeline.rank_worker import RankWorker
from inference_api.pipeline.ranks import RankSettings, Split
from inference_api.pipeline.ring import Ring
from inference_api.pipeline.runner import PipelineRunner
from inference_api.settings import ModelSettings
from lab.kit.servers import TIMEOUT_S
from tests.ports import free_port

Parts = Callable[[Path, EngineOptions], MakeRunner]
kernels: Parts = partial(part_runners, local_ranks=1)  # each rank has its own


def make_pipeline(
    folder: Path,
    options: EngineOptions,
    split: Split,
    of_others: EngineOptions | None = None,
    parts: Parts = kernels,
) -> PipelineRunner:
    """To be loaded. The other ranks are there, and end when it is closed. `of_others`: their
    options; default: the same."""
    port = free_port()
    runner = PipelineRunner(parts(folder, options), split, partial(_join, port, len(split), 0))
    _start(folder, of_others or options, port, len(split), parts)
    return runner


def start_ranks(model: ModelSettings, port: int, num_ranks: int) -> None:
    """All but the first, of a server with these settings."""
    _start(Path(model.model), EngineOptions.from_settings(model), port, num_ranks)


def _start(
    folder: Path, options: EngineOptions, port: int, num_ranks: int, parts: Parts = kernels
) -> None:
    hidden_size = load_config(folder).hidden_size

    def work(rank: int) -> None:
        ring = _join(port, num_ranks, rank, hidden_size)
        RankWorker(ring, parts(folder, options)).run()

    for rank in range(1, num_ranks):
        Thread(target=work, args=(rank,), name=f"rank-{rank}", daemon=True).start()


def _join(port: int, num_ranks: int, rank: int, hidden_size: int) -> Ring:
    ranks = RankSettings(rank=rank, world_size=num_ranks, master_port=port)
    return Ring.join(ranks, hidden_size, TIMEOUT_S)
