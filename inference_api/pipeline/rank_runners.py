"""Makes a rank's runner for a range of layers."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from inference_api.engine.devices import make_runner
from inference_api.engine.local_runner import LocalRunner
from inference_api.kernels.library import Kernels
from inference_api.loading.config import LayerRange
from inference_api.loading.options import EngineOptions

MakeRunner = Callable[[LayerRange], LocalRunner]


def part_runners(
    model_dir: Path,
    options: EngineOptions,
    local_ranks: int,
    kernels_of: Callable[[int], Kernels] | None = None,
) -> MakeRunner:
    """Returns a function that makes runners. `local_ranks` ranks share this machine's cores and
    memory. A device of auto is the CPU. For `kernels_of` see `KernelRunner`."""
    shared = kernels_of or kernels_of_ranks(local_ranks)
    device = "cuda" if options.device == "cuda" else "cpu"
    own = replace(options, device=device, num_runners=local_ranks)
    return lambda layers: make_runner(model_dir, own.with_layers(layers), shared)


def kernels_of_ranks(local_ranks: int) -> Callable[[int], Kernels]:
    """Returns kernels for this rank's share of `num_threads`."""
    return cache(lambda num_threads: Kernels(max(1, num_threads // local_ranks)))
