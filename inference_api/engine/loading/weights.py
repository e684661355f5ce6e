"""Loads the decoder's parameters from safetensors and GGUF files, one tensor at a time."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference_api.engine.linear import Linear, PackedLinear, Packing, TorchLinear
from inference_api.engine.loading.config import ModelConfig
from inference_api.engine.loading.gguf_blocks import GgufTensor
from inference_api.engine.loading.gguf_files import is_gguf, read_gguf
from inference_api.engine.loading.gguf_names import is_rope_interleaved
from inference_api.engine.loading.layout import (
    HEAD,
    Part,
    Plan,
    decodes_by_kernels,
    linear_weights,
    parameter_shape,
    weight_plan,
)
from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels, PackedWeight, UnusableWeight


@dataclass(frozen=True, slots=True)
class Parameters:
    """By the names of `weight_plan`, and "head", which is the embedding when the two are tied.

    With a packing the weights of linear maps are packed, and only the others are tensors.
    """

    tensors: dict[str, Tensor]
    packed: dict[str, PackedWeight]
    packing: Packing | None

    def linear(self, weight: str, bias: str | None = None) -> Linear:
        """The linear map of these parameters; `bias` may name one that the model has not."""
        offsets = None if bias is None else self.tensors.get(bias)
        if self.packing is None:
            return TorchLinear(self.tensors[weight], offsets)
        offsets = None if offsets is None else offsets.float()
        return PackedLinear(self.packing.kernels, self.packed[weight], offsets)


Weight = Tensor | GgufTensor  # one tensor of the checkpoint
Write = Callable[[Weight], object]  # brings it to its place
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def load_parameters(
    files: Sequence[Path],
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    packing: Packing | None = None,
) -> Parameters:
    """Read every parameter straight to its place, device and precision, or to its packed form.

    Beyond the parameters themselves, only the tensor being read takes memory. Where the kernels run
    whole steps, vectors are float32 whatever `dtype` is: they read no others. The caller has
    compared the files' headers with the plan. Raises StartupError when a file cannot be read to
    its end, or a weight is not a number that can be packed.
    """
    packed_plan = {} if packing is None else linear_weights(config)
    kept_plan = {
        name: parts for name, parts in weight_plan(config).items() if name not in packed_plan
    }
    parameters = Parameters({}, {}, packing)
    has_kernels = packing is not None and decodes_by_kernels(config, packing.bits)
    dtypes = (torch.float32 if has_kernels else dtype, dtype)
    targets: dict[str, list[Write]] = {}  # by name in the checkpoint; a tied embedding has two
    for part, write in _tensor_targets(parameters, kept_plan, device, dtypes):
        targets.setdefault(part.name, []).append(_ordered(part, config, write))
    for part, write in _packed_targets(parameters, packed_plan):
        targets.setdefault(part.name, []).append(_ordered(part, config, write))
    for file in files:
        for name, weight in _read_gguf(file) if is_gguf(file) else _read(file, targets.keys()):
            _write(name, weight, targets.pop(name))
    assert not targets, f"headers were checked, yet {sorted(targets)} were not in the files"
    if config.is_head_tied:
        parameters.tensors[HEAD] = parameters.tensors["embedding"]
    return parameters


def _tensor_targets(
    parameters: Parameters,
    plan: Plan,
    device: torch.device,
    dtypes: tuple[torch.dtype, torch.dtype],
) -> Iterator[tuple[Part, Write]]:
    """`dtypes`: of vectors, and of matrices."""
    for name, parts in plan.items():
        shape = parameter_shape(parts)
        tensor = torch.empty(shape, dtype=dtypes[len(shape) > 1], device=device)
        parameters.tensors[name] = tensor
        views = tensor.split_with_sizes([part.shape[0] for part in parts])
        yield from (
            (part, partial(_copy, target=view)) for part, view in zip(parts, views, strict=True)
        )


def _packed_targets(parameters: Parameters, plan: Plan) -> Iterator[tuple[Part, Write]]:
    packing = parameters.packing
    for name, parts in plan.items():
        assert packing is not None
        weight = PackedWeight.empty(packing.bits, *parameter_shape(parts))
        parameters.packed[name] = weight
        first = 0
        for part in parts:
            yield part, partial(_pack, packing.kernels, packed=weight, first_output=first)
            first += part.shape[0]


def _read(file: Path, wanted: Collection[str]) -> Iterator[tuple[str, Weight]]:
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                if name in wanted:
                    yield name, tensors.get_tensor(name)
    except SafetensorError as error:
        raise StartupError([f"{file} is damaged ({error}); get the file again."]) from None


def _read_gguf(file: Path) -> Iterator[tuple[str, Weight]]:
    model = read_gguf(file)
    for name, tensor in model.tensors.items():
        weight = GgufTensor.of(tensor)
        is_interleaved = is_rope_interleaved(model.architecture, name)
        yield name, weight.without_interleaving(model.config.head_dim) if is_interleaved else weight


def _ordered(part: Part, config: ModelConfig, write: Write) -> Write:
    """`write`, after the rows have been brought into our order, which GGUF's are in already."""

    def write_ordered(weight: Weight) -> object:
        return write(ungrouped(weight, config) if isinstance(weight, Tensor) else weight)

    return write_ordered if part.is_grouped_qkv else write


def _copy(weight: Weight, target: Tensor) -> None:
    if isinstance(weight, Tensor):
        target.copy_(weight)
    else:
        weight.copy_to(target)


def _pack(kernels: Kernels, weight: Weight, packed: PackedWeight, first_output: int) -> None:
    if isinstance(weight, Tensor):
        kernels.pack(weight, packed, first_output)
    else:
        weight.pack_into(kernels.pack, packed, first_output)


def _write(name: str, weight: Weight, writes: Sequence[Write]) -> None:
    if isinstance(weight, Tensor) and weight.dtype not in FLOATS:
        kind = str(weight.dtype).removeprefix("torch.")
        raise StartupError(
            [f"{name} is {kind}; choose a float32, float16 or bfloat16 checkpoint, or a GGUF file."]
        )
    try:
        for write in writes:
            write(weight)
    except UnusableWeight as error:
        what = "model" if isinstance(weight, Tensor) else "file"
        raise StartupError([f"{name} cannot be loaded: {error}; get the {what} again."]) from error


def ungrouped(qkv: Tensor, config: ModelConfig) -> Tensor:
    """Rows of [group: queries, key, value] reordered to all queries, all keys, all values."""
    groups = qkv.view(config.num_kv_heads, config.num_groups + 2, config.head_dim, *qkv.shape[1:])
    queries, keys, values = groups.split_with_sizes([config.num_groups, 1, 1], dim=1)
    return torch.cat([part.flatten(0, 2) for part in (queries, keys, values)])
