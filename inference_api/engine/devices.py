"""Makes runners on the device that the options name, or for `auto` on the one available."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.engine.local_runner import LocalRunner
from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels
from inference_api.loading import hardware
from inference_api.loading.memory import memory_faults
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.folder import PackedFolder

if TYPE_CHECKING:
    from inference_api.engine.cuda.slots import Place, Slots

logger = logging.getLogger(__name__)

CUDA = "cuda"  # the device that torch runs on; tests have another


def make_runner(
    folder: Path,
    options: EngineOptions,
    kernels_of: Callable[[int], Kernels] = Kernels,
    packed: PackedFolder | None = None,
    place: "Place | None" = None,
) -> LocalRunner:
    """Returns a runner on the options' device. `kernels_of` is for the CPU: see `KernelRunner`. An
    expert of a bundle has `packed` and, on CUDA, `place`: see `SlotRunner`. Raises StartupError."""
    if _is_on_cuda(options.device):
        from inference_api.engine.cuda.runner import CudaRunner
        from inference_api.engine.cuda.slot_runner import SlotRunner

        options = replace(options, device=CUDA)
        if packed is None or place is None:
            return CudaRunner(folder, options)
        return SlotRunner(folder, options, packed, place)
    return KernelRunner(folder, options, kernels_of, packed)


def make_slots(pause: Callable[[], None], held_bytes: int) -> "Slots":
    """Returns the slots of a bundle on CUDA: see `Slots`. Raises StartupError."""
    _is_on_cuda("cuda")
    from inference_api.engine.cuda.slots import Slots

    return Slots(CUDA, pause, held_bytes)


def _is_on_cuda(device: str) -> bool:
    """Returns whether to run on CUDA. Imports torch only if there may be a GPU. Raises StartupError
    if CUDA is requested and not available."""
    is_required = device == "cuda"
    if device == "cpu" or not (is_required or hardware.has_nvidia_driver()):
        return False
    if not hardware.has_torch():
        if is_required:
            raise StartupError(hardware.NO_TORCH)
        logger.warning(
            "there is an NVIDIA driver and no torch: the CPU serves; %s to use the GPU",
            hardware.INSTALL_TORCH,
        )
        return False
    from inference_api.engine.cuda.runner import has_cuda

    if is_required and not has_cuda():
        raise StartupError(hardware.NO_CUDA)
    return has_cuda()


def share_memory(runners: Sequence[LocalRunner]) -> None:
    """Have each runner leave room for the others on its device."""
    for runner in runners:
        others = [each for each in runners if each is not runner and each.device == runner.device]
        runner.leave_room_for(others)


def check_memory(runners: Mapping[str, LocalRunner]) -> None:
    """Raises StartupError if these models, by name, do not fit together into their devices."""
    faults: list[str] = []
    for device, runner in {runner.device: runner for runner in runners.values()}.items():
        footprints = {
            name: runner.footprint for name, runner in runners.items() if runner.device == device
        }
        faults += memory_faults(footprints, runner.free_bytes())
    if faults:
        raise StartupError(faults)
