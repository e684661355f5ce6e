"""The parameters of a model that torch decodes, on any device and in any precision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda.panels import Panels, unpacked
from inference_api.kernels.library import PackedWeight
from inference_api.kernels.packing import Bits
from inference_api.loading import layout
from inference_api.loading.config import ModelConfig
from inference_api.loading.numbers import Numbers
from inference_api.loading.stream import Weight, write_weights
from inference_api.loading.weights import Packing, source_writes

Multiply = Callable[[Tensor, Sequence[Panels], Tensor | None], Tensor]


Linear = Callable[[Tensor], Tensor]
"""Maps [n, inputs] to [n, outputs] in the same precision; or to parts in float32, [parts, n,
outputs], whose sum is the result. `summed` adds them, and so do all operations but products. Unless
weights are packed, a row's bits depend on the number of rows."""


def multiply(x: Tensor, weights: Sequence[Panels], bias: Tensor | None) -> Tensor:
    """See `Operations.multiply`."""
    return F.linear(x, torch.cat([unpacked(each).to(x.dtype) for each in weights]), bias)


def of_torch(weight: Tensor, bias: Tensor | None) -> Linear:
    return lambda x: F.linear(x, weight, bias)


def summed(product: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the result of a `Linear`, whole or in parts, as [n, outputs] of `dtype`."""
    return product if product.ndim == 2 else reduce(torch.add, product.unbind()).to(dtype)


@dataclass(frozen=True, slots=True)
class TorchParameters:
    """Weights by their names in `weight_plan`; "head" is the embedding if the two are tied."""

    tensors: dict[str, Tensor]
    panels: Mapping[str, Panels] = field(default_factory=dict, kw_only=True)
    multiply: Multiply = field(default=multiply, kw_only=True)

    def linear(self, name: str, *, after: str = "") -> Linear:
        """Returns the linear map `name`, followed by the outputs of `after` if that exists."""
        named = [name, after]
        matrices = [each if each == layout.HEAD else f"{each}.weight" for each in named]
        weights = [self.panels[each] for each in matrices if each in self.panels]
        biases = [self.tensors[f"{each}.bias"] for each in named if f"{each}.bias" in self.tensors]
        if not weights:
            return of_torch(self.tensors[matrices[0]], biases[0] if biases else None)
        return self._packed(weights, torch.cat(biases) if biases else None)

    def linears(self, name: str, count: int) -> list[Linear]:
        """Returns linear maps whose weights are stacked in one tensor, as are biases if any."""
        weight, stacked = f"{name}.weight", self.tensors.get(f"{name}.bias")
        biases = [None] * count if stacked is None else stacked.chunk(count)
        if weight in self.panels:
            parts = zip(self.panels[weight].parts(count), biases, strict=True)
            return [self._packed([part], own) for part, own in parts]
        return [*map(of_torch, self.tensors[weight].chunk(count), biases)]

    def _packed(self, weights: Sequence[Panels], bias: Tensor | None) -> Linear:
        """Returns a map with the outputs of all weights, in their order."""
        return lambda x: self.multiply(x, weights, bias)

    def matrix(self, name: str) -> Tensor:
        """Returns a matrix, unpacked if it is packed."""
        return unpacked(self.panels[name]) if name in self.panels else self.tensors[name]

    def qk_norm(self, config: ModelConfig, layer: int) -> Tensor | None:
        """Returns the norm weights of a layer's queries and keys, [heads + kv_heads, head_dim]."""
        if not config.has_qk_norm:
            return None
        counts = {"q_norm": config.num_heads, "k_norm": config.num_kv_heads}
        norms = [
            self.tensors[f"layers.{layer}.{name}"].view(-1, config.head_dim).expand(count, -1)
            for name, count in counts.items()
        ]
        return torch.cat(norms)


def load_torch_parameters(
    files: Sequence[Path],
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    packing: Packing | None = None,
    memory: Mapping[str, Tensor] | None = None,
    pause: Callable[[], None] = lambda: None,
) -> TorchParameters:
    """Read every parameter directly into its memory on the device. With `packing`, weights are
    packed first, one at a time. `memory` None allocates it: see `torch_parameters`; for `pause` see
    `write_weights`. Raises StartupError."""
    bits = None if packing is None else packing.bits
    forms = layout.torch_forms(config, dtype.itemsize, bits)
    memory = memory or {
        name: torch.empty(form.num_bytes, dtype=torch.uint8, device=device)
        for name, form in forms.items()
    }
    parameters = torch_parameters(config, dtype, bits, memory)
    plan = layout.weight_plan(config) | layout.linear_weights(config)
    writes: dict[str, Callable[[int, Weight], None]] = {}
    for name in forms:
        if name in parameters.panels:
            assert packing is not None
            writes[name] = _packer(parameters.panels[name], len(plan[name]), packing)
        else:
            writes[name] = partial(_copy, parameters.tensors[name])
    write_weights(files, source_writes(plan, writes), config, pause)
    return parameters


def torch_parameters(
    config: ModelConfig, dtype: torch.dtype, bits: Bits | None, memory: Mapping[str, Tensor]
) -> TorchParameters:
    """Returns the parameters as views of `memory`, which has the bytes of each by name. Their forms
    are those of `torch_forms`."""
    tensors: dict[str, Tensor] = {}
    panels: dict[str, Panels] = {}
    for name, form in layout.torch_forms(config, dtype.itemsize, bits).items():
        if form.bits is None:
            kind = dtype if form.element_bytes == dtype.itemsize else torch.float32
            tensors[name] = memory[name].view(kind).view(form.shape)
        else:
            outputs, inputs = form.shape
            panels[name] = Panels(memory[name], form.bits, outputs, inputs)
    if config.is_head_tied and config.has_ends and layout.HEAD not in panels:
        if layout.EMBEDDING in panels:
            panels[layout.HEAD] = panels[layout.EMBEDDING]
        else:
            tensors[layout.HEAD] = tensors[layout.EMBEDDING]
    return TorchParameters(tensors, panels=panels)


def _packer(matrix: Panels, left: int, packing: Packing) -> Callable[[int, Weight], None]:
    """Packs all parts, `left` in number, on the host before it copies them, because two parts may
    share a panel."""
    packed: PackedWeight | None = None

    def pack(first: int, weight: Weight) -> None:
        nonlocal left, packed
        if packed is None:
            packed = PackedWeight.empty(matrix.bits, matrix.outputs, matrix.inputs)
        weight.pack_into(packing.kernels.pack, packed, first)
        left -= 1
        if left == 0:
            matrix.blocks.copy_(torch.from_numpy(packed.blocks))
            packed = None

    return pack


def _copy(target: Tensor, first: int, weight: Weight) -> None:
    if isinstance(weight, Numbers):
        tensor = torch.from_numpy(weight.data)
        tensor = tensor.view(torch.bfloat16) if weight.kind == "BF16" else tensor
        target[first : first + len(tensor)].copy_(tensor)
        return
    for at, rows in weight.rows():
        target[first + at : first + at + len(rows)].copy_(torch.from_numpy(rows))
