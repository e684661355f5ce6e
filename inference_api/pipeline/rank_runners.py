"""Makes runners for a rank's range of layers."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from inference_api.engine.devices import make_runner
from inference_api.engine.local_runner import LocalRunner
from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels
from inference_api.loading.config import LayerRange
from inference_api.loading.options import EngineOptions

logger = logging.getLogger(__name__)

MakeRunner = Callable[[LayerRange], LocalRunner]


def part_runners(
    model_dir: Path,
    options: EngineOptions,
    local_ranks: int,
    kernels_of: Callable[[int], Kernels] | None = None,
) -> MakeRunner:
    """Returns a function that makes runners. `local_ranks` ranks share this machine's cores and
    memory. Device `auto` means the CPU. For `kernels_of` see `KernelRunner`."""
    shared = kernels_of or kernels_of_ranks(local_ranks)
    device = "cuda" if options.device == "cuda" else "cpu"
    rank_options = replace(options, device=device, num_runners=local_ranks)
    return lambda layers: make_runner(model_dir, rank_options.with_layers(layers), shared)


def runner_in_place_of(
    loaded: LocalRunner, make_runner: MakeRunner, layers: LayerRange, num_pages: int
) -> LocalRunner | None:
    """Returns a runner of these layers with `num_pages` pages; None if it does not fit into the
    memory that is free once `loaded` is unloaded. The log says why."""
    try:
        runner = make_runner(layers)
    except StartupError as error:
        logger.warning("layers %d to %d: %s", *layers, error)
        return None
    runner.share_pages(num_pages)
    free_bytes, freed_bytes = runner.free_bytes(), loaded.footprint.total_bytes
    # Ranks that share memory with others may use what the others free, so there is no bound.
    if loaded.is_alone and free_bytes is not None:
        needed_bytes = runner.footprint.total_bytes
        if needed_bytes > free_bytes + freed_bytes:
            shown = (*layers, needed_bytes, free_bytes, freed_bytes)
            logger.warning("layers %d to %d take %d bytes, of %d and %d to be freed", *shown)
            return None
    return runner


def kernels_of_ranks(local_ranks: int) -> Callable[[int], Kernels]:
    """Returns a function from a number of threads to kernels with this rank's share of them."""
    return cache(lambda num_threads: Kernels(max(1, num_threads // local_ranks)))
