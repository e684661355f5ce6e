"""Linear maps: what the decoder multiplies by, in whatever form the weights are."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.kernels.library import Kernels, PackedWeight
from inference_api.kernels.packing import Bits


class Linear(Protocol):
    """[n, inputs] to [n, outputs], in the same precision."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """Weights as they are. A row's bits depend on how many rows there are."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """Packed weights, multiplied by the kernels. A row's bits depend on that row alone."""

    kernels: Kernels
    weight: PackedWeight
    bias: Tensor | None  # float32

    def __call__(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.numpy()
        made = self.kernels.linear(x.float().contiguous().numpy(), self.weight, bias)
        return torch.from_numpy(made).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Packing:
    """The form of linear maps' weights for the kernels that multiply by them."""

    kernels: Kernels
    bits: Bits
