"""The parameters of a model that torch decodes, on any device and in any precision."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.loading.config import ModelConfig
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.layout import EMBEDDING, HEAD, parameter_forms, weight_plan
from inference_api.loading.numbers import Numbers
from inference_api.loading.stream import Weight, Write, write_weights


class Linear(Protocol):
    """[n, inputs] to [n, outputs], in the same precision."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """A row's bits depend on how many rows there are."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class TorchParameters:
    """Weights named as in `weight_plan`, and "head", the embedding when the two are tied."""

    tensors: dict[str, Tensor]

    def linear(self, weight: str, bias: str | None = None) -> Linear:
        """The linear map of these parameters; `bias` may name one that the model has not."""
        return TorchLinear(self.tensors[weight], None if bias is None else self.tensors.get(bias))

    def linears(self, weight: str, bias: str, count: int) -> list[Linear]:
        """The linear maps whose weights are stacked in one, and so are their biases, if any."""
        stacked = self.tensors.get(bias)
        biases = [None] * count if stacked is None else stacked.chunk(count)
        weights = self.tensors[weight].chunk(count)
        return [TorchLinear(*each) for each in zip(weights, biases, strict=True)]

    def qk_norm(self, config: ModelConfig, layer: int) -> Tensor | None:
        """What a layer's queries and keys are multiplied by, [heads + kv_heads, head_dim]."""
        if not config.has_qk_norm:
            return None
        counts = {"q_norm": config.num_heads, "k_norm": config.num_kv_heads}
        norms = [
            self.tensors[f"layers.{layer}.{name}"].view(-1, config.head_dim).expand(count, -1)
            for name, count in counts.items()
        ]
        return torch.cat(norms)


def load_torch_parameters(
    files: Sequence[Path], config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> TorchParameters:
    """Read every parameter straight to its place, device and precision. Raises StartupError; see
    `write_weights`."""
    tensors = {
        name: torch.empty(
            form.shape,
            dtype=dtype if form.element_bytes == dtype.itemsize else torch.float32,
            device=device,
        )
        for name, form in parameter_forms(config, dtype.itemsize, None).items()
    }
    write_weights(files, _targets(tensors, config), config)
    if config.is_head_tied and config.has_ends:
        tensors[HEAD] = tensors[EMBEDDING]
    return TorchParameters(tensors)


def _targets(
    tensors: Mapping[str, Tensor], config: ModelConfig
) -> Iterator[tuple[SourceTensor, Write]]:
    for name, parts in weight_plan(config).items():
        views = tensors[name].split_with_sizes([part.shape[0] for part in parts])
        for part, view in zip(parts, views, strict=True):
            yield part, partial(_copy, view)


def _copy(target: Tensor, weight: Weight) -> None:
    if isinstance(weight, Numbers):
        target.copy_(_as_tensor(weight))
        return
    for first, rows in weight.rows():
        target[first : first + len(rows)].copy_(torch.from_numpy(rows))


def _as_tensor(numbers: Numbers) -> Tensor:
    """Returns the same floats, in the same memory."""
    tensor = torch.from_numpy(numbers.data)
    return tensor.view(torch.bfloat16) if numbers.kind == "BF16" else tensor
