"""The parameters of a model by either loader, without a runner."""

from pathlib import Path

import torch
from torch import Tensor

from inference_api.engine.cuda.parameters import TorchParameters, load_torch_parameters
from inference_api.kernels.library import Kernels
from inference_api.kernels.packing import Bits
from inference_api.loading.checkpoint import load_config
from inference_api.loading.files import weight_files
from inference_api.loading.weights import Packing, Parameters, load_parameters


def packed_parameters(
    model: Path, bits: Bits, dtype: str = "float32", kernels: Kernels | None = None
) -> Parameters:
    """As the kernels have them."""
    packing = Packing(kernels or Kernels(1), bits)
    return load_parameters(weight_files(model), load_config(model), dtype, packing)


def torch_parameters(
    model: Path, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> TorchParameters:
    """As torch has them."""
    files, config = weight_files(model), load_config(model)
    return load_torch_parameters(files, config, torch.device(device), dtype)


def numbers_of(model: Path) -> dict[str, Tensor]:
    """All of them as float32."""
    return torch_parameters(model).tensors
