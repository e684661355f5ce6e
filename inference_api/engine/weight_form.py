"""The form that a model's weights will be held in, by its configuration and its files' headers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inference_api.errors import StartupError
from inference_api.kernels.library import PORTABLE, Kernels, KernelsUnavailable
from inference_api.kernels.packing import FLOAT_BITS, Bits
from inference_api.loading import checkpoint
from inference_api.loading.config import ModelConfig
from inference_api.loading.files import read_headers, weight_files
from inference_api.loading.layout import Tensors
from inference_api.loading.options import EngineOptions
from inference_api.loading.weights import Packing

logger = logging.getLogger(__name__)

INT4_COST = "with SmolLM2-135M, perplexity is 18.8 instead of int8's 14.2 (docs/benchmarks.md)"
DTYPES = {  # keys are values of DTYPE and KV_CACHE_DTYPE
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}


@dataclass(frozen=True, slots=True)
class WeightForm:
    """The form of the whole model's weights, which all processes that share it must agree on."""

    files: Sequence[Path]
    options: EngineOptions  # with the dtype that auto means for these weights
    packing: Packing | None

    @property
    def bits(self) -> Bits | None:
        return None if self.packing is None else self.packing.bits

    @property
    def quantization(self) -> str:
        """What came of QUANTIZATION."""
        return "none" if self.packing is None else self.options.quantization

    @property
    def kernels(self) -> str:
        """Their variant; torch where it multiplies."""
        return "torch" if self.packing is None else self.packing.kernels.variant

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.options.dtype]


def weight_form(
    model_dir: Path, config: ModelConfig, asked: EngineOptions, kernels: Callable[[], Kernels]
) -> WeightForm:
    """Settles what auto means for these weights, as far as there are kernels for it.

    Raises StartupError when this model or device cannot have what QUANTIZATION asks for.
    """
    files = weight_files(model_dir)
    tensors = read_headers(files, config.tensor_names)
    settled = checkpoint.settled(config, asked, tensors)
    _log_losses(model_dir.name, config, asked, settled, tensors)
    options = settled.on(settled.device, checkpoint.keeps_bfloat16(config, settled, tensors))
    packing = None
    try:
        packing = _packing(config, options, kernels)
    except KernelsUnavailable as error:
        ignored = f"QUANTIZATION={asked.quantization} is ignored and "
        logger.warning(
            "%storch multiplies by the weights as they are, because %s",
            "" if settled.quantization == "none" else ignored,
            error,
        )
    return WeightForm(files, options if packing else settled.on(settled.device), packing)


def _log_losses(
    name: str, config: ModelConfig, asked: EngineOptions, settled: EngineOptions, tensors: Tensors
) -> None:
    """Says what QUANTIZATION costs this model: memory and speed, or quality."""
    reason = checkpoint.obstacle(asked)
    if asked.quantization == "auto" and reason and checkpoint.is_quantised(config, tensors):
        logger.info("%s is quantised, yet QUANTIZATION=auto is none for it: %s", name, reason)
    num_rounded = checkpoint.num_rounded(config, tensors) if settled.quantization == "int4" else 0
    if num_rounded:
        logger.warning(
            "QUANTIZATION=int4 rounds %d matrices of %s that its file has in another form, and "
            "answers are worse for it: %s; set QUANTIZATION=int8",
            *(num_rounded, name, INT4_COST),
        )


def _packing(
    config: ModelConfig, options: EngineOptions, kernels_of: Callable[[], Kernels]
) -> Packing | None:
    """Returns the kernels' packing; None where torch multiplies by the weights as they are.

    Raises StartupError, and KernelsUnavailable.
    """
    faults = checkpoint.quantization_faults(options)
    if options.device == "cpu":
        faults += checkpoint.cpu_faults(config, options)
    if faults:
        raise StartupError(faults)
    if options.device != "cpu":
        return None
    bits = checkpoint.weight_bits(options)
    if bits is None:
        return None
    kernels = kernels_of()
    if bits in FLOAT_BITS.values() and kernels.variant == PORTABLE:
        return None  # with many rows torch is faster
    return Packing(kernels, bits)
