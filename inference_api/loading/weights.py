"""Loads the decoder's parameters from safetensors and GGUF files, one tensor at a time."""

import mmap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gguf import ReaderTensor
from torch import Tensor

from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels, PackedWeight, UnusableWeight
from inference_api.loading.config import ModelConfig, TensorNames
from inference_api.loading.files import tensor_places
from inference_api.loading.gguf.blocks import GgufTensor, joined
from inference_api.loading.gguf.files import is_gguf, read_gguf
from inference_api.loading.gguf.names import row_order
from inference_api.loading.layout import (
    EMBEDDING,
    HEAD,
    SourceTensor,
    TensorForm,
    linear_weights,
    parameter_forms,
    weight_plan,
)
from inference_api.loading.linear import Linear, PackedLinear, Packing, TorchLinear
from inference_api.loading.packing.layout import ALIGNMENT_BYTES
from inference_api.loading.packing.pages import anonymous
from inference_api.loading.quantised.weights import QuantisedTensor, read_quantised
from inference_api.loading.safetensors import opened, read_tensor


@dataclass(frozen=True, slots=True)
class Parameters:
    """Weights named as in `weight_plan`, and "head", the embedding when the two are tied.

    With a packing the weights of linear maps are packed, and only the others are tensors; where the
    kernels decode the embedding is packed too.
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

    def linears(self, weight: str, bias: str, count: int) -> list[Linear]:
        """The linear maps whose weights are stacked in one, and so are their biases, if any."""
        stacked = self.tensors.get(bias)
        biases = [None] * count if stacked is None else stacked.chunk(count)
        if self.packing is None:
            weights = self.tensors[weight].chunk(count)
            return [TorchLinear(*each) for each in zip(weights, biases, strict=True)]
        packed = self.packed[weight]
        outputs = packed.outputs // count
        return [
            PackedLinear(
                self.packing.kernels,
                packed.part(i * outputs, (i + 1) * outputs),
                None if each is None else each.float(),
            )
            for i, each in enumerate(biases)
        ]

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


Weight = Tensor | QuantisedTensor | GgufTensor  # one tensor of the checkpoint
Write = Callable[[Weight], object]  # brings it to its place
Memory = Mapping[str, Tensor]  # uint8 zeros for each parameter, by name


def load_parameters(
    files: Sequence[Path],
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    packing: Packing | None = None,
    memory: Memory | None = None,
    pause: Callable[[], None] = lambda: None,
) -> Parameters:
    """Read every parameter straight to its place, device and precision, or to its packed form.

    Beyond the parameters themselves, only the tensor being read takes memory. Files are read and
    not mapped: one that is cut short while it is mapped ends the process. The caller has
    compared the files' headers with the plan. `memory`: see `empty_parameters`; `pause` is called
    between tensors. Raises StartupError when a file cannot be read to its end, or a weight is not a
    number that can be packed.
    """
    parameters = empty_parameters(config, device, dtype, packing, memory)
    # Keys are names in the checkpoint; a tied embedding has two writes.
    targets: dict[str, list[Write]] = {}
    parts: dict[str, SourceTensor] = {}
    for part, write in (*_tensor_targets(parameters, config), *_packed_targets(parameters, config)):
        targets.setdefault(part.name, []).append(_converted(part, config, write))
        parts[part.name] = part
    for name, weight in _weights(files, parts, config):
        _write(name, weight, targets.pop(name))
        pause()
    assert not targets, f"headers were checked, yet {sorted(targets)} were not in the files"
    return parameters


def empty_parameters(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    packing: Packing | None = None,
    memory: Memory | None = None,
) -> Parameters:
    """The memory of parameters, in the forms of `layout.parameter_forms`: new, or in `memory`."""
    tensors: dict[str, Tensor] = {}
    packed: dict[str, PackedWeight] = {}
    forms = parameter_forms(config, dtype.itemsize, None if packing is None else packing.bits)
    if memory is None and packing is not None:
        memory = _huge_pages(forms)
    for name, form in forms.items():
        own = None if memory is None else memory[name]
        if form.bits is not None:
            outputs, inputs = form.shape
            packed[name] = PackedWeight.empty(
                form.bits, outputs, inputs, None if own is None else own.numpy()
            )
            continue
        kind = dtype if form.element_bytes == dtype.itemsize else torch.float32
        tensors[name] = (
            torch.empty(form.shape, dtype=kind, device=device)
            if own is None
            else own.view(kind).view(form.shape)
        )
    if config.is_head_tied and config.has_ends and HEAD not in packed:
        of_form: dict[str, Any] = packed if EMBEDDING in packed else tensors
        of_form[HEAD] = of_form[EMBEDDING]
    return Parameters(tensors, packed, packing)


def _huge_pages(forms: Mapping[str, TensorForm]) -> Memory:
    """All in one piece, so that small ones have huge pages too: a step reads from nearly every
    page, and looking up where pages are takes time."""
    sizes = [-(-form.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for form in forms.values()]
    whole = torch.frombuffer(anonymous(sum(sizes), mmap.MADV_HUGEPAGE), dtype=torch.uint8)
    parts = zip(forms.items(), whole.split_with_sizes(sizes), strict=True)
    return {name: part[: form.num_bytes] for (name, form), part in parts}


def _tensor_targets(
    parameters: Parameters, config: ModelConfig
) -> Iterator[tuple[SourceTensor, Write]]:
    for name, parts in weight_plan(config).items():
        if name in parameters.packed:
            continue
        views = parameters.tensors[name].split_with_sizes([part.shape[0] for part in parts])
        for part, view in zip(parts, views, strict=True):
            yield part, partial(_copy, target=view)


def _packed_targets(
    parameters: Parameters, config: ModelConfig
) -> Iterator[tuple[SourceTensor, Write]]:
    packing, plan = parameters.packing, weight_plan(config) | linear_weights(config)
    for name, weight in parameters.packed.items():
        assert packing is not None
        if name == HEAD and weight is parameters.packed.get(EMBEDDING):
            continue
        first = 0
        for part in plan[name]:
            yield part, partial(_pack, packing.kernels, packed=weight, first_output=first)
            first += part.shape[0]


def _weights(
    files: Sequence[Path], parts: Mapping[str, SourceTensor], config: ModelConfig
) -> Iterator[tuple[str, Weight]]:
    """Raises StartupError."""
    if config.quantisation is not None:
        yield from read_quantised(files, parts, config.quantisation, config.tensor_names)
        return
    for file in files:
        if is_gguf(file):
            yield from _read_gguf(file, parts)
        else:
            yield from _read(file, parts.keys(), config.tensor_names)


def _read(file: Path, wanted: Collection[str], names: TensorNames) -> Iterator[tuple[str, Weight]]:
    places = {name: place for name, place in tensor_places(file, names).items() if name in wanted}
    with opened(file) as stream:
        for name, place in sorted(places.items(), key=lambda each: each[1].begin):
            yield name, read_tensor(stream, name, place)


def _read_gguf(file: Path, parts: Mapping[str, SourceTensor]) -> Iterator[tuple[str, Weight]]:
    model = read_gguf(file)

    def read(tensor: ReaderTensor) -> GgufTensor:
        try:
            return GgufTensor.read(file, tensor)
        except (OSError, ValueError) as error:
            raise StartupError([f"{file} is damaged ({error}); get the file again."]) from None

    for name, halves in model.halves.items():
        if name in parts:
            yield name, _joined(file, *map(read, halves))
    for name, tensor in model.tensors.items():
        if name in parts:
            order = row_order(model.architecture, parts[name], model.config)
            yield name, read(tensor).reordered(order) if order else read(tensor)


def _joined(file: Path, keys: GgufTensor, values: GgufTensor) -> Tensor:
    try:
        return joined(keys, values)
    except UnusableWeight as error:
        raise StartupError([f"{file} cannot be loaded: {error}; get the file again."]) from error


def _converted(part: SourceTensor, config: ModelConfig, write: Write) -> Write:
    """`write`, after a tensor of safetensors has been made one of ours."""
    convert = partial(converted, part=part, config=config)

    def write_converted(weight: Weight) -> object:
        if isinstance(weight, QuantisedTensor):
            return write(weight.with_rows(convert))
        return write(convert(weight) if isinstance(weight, Tensor) else weight)

    return write_converted if part != SourceTensor(part.name, part.shape) else write


def _copy(weight: Weight, target: Tensor) -> None:
    if isinstance(weight, Tensor):
        target.copy_(weight)
    else:
        weight.copy_to(target)


def _pack(kernels: Kernels, weight: Weight, packed: PackedWeight, first_output: int) -> None:
    if isinstance(weight, Tensor):
        bits = weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight
        kernels.pack(bits.numpy(), packed, first_output)
    else:
        weight.pack_into(kernels.pack, packed, first_output)


def _write(name: str, weight: Weight, writes: Sequence[Write]) -> None:
    try:
        for write in writes:
            write(weight)
    except UnusableWeight as error:
        what = "file" if isinstance(weight, GgufTensor) else "model"
        raise StartupError([f"{name} cannot be loaded: {error}; get the {what} again."]) from error


def converted(tensor: Tensor, part: SourceTensor, config: ModelConfig) -> Tensor:
    """A tensor of safetensors as one of ours; see `SourceTensor`."""
    if part.is_grouped_qkv:
        tensor = _ungrouped(tensor, config)
    if part.head_order:
        heads = tensor.view(-1, len(part.head_order), *tensor.shape[1:])
        tensor = heads[:, part.head_order].flatten(0, 1)
    return tensor.float() + part.offset if part.offset else tensor


def _ungrouped(qkv: Tensor, config: ModelConfig) -> Tensor:
    """Rows of [group: queries, key, value] reordered to all queries, all keys, all values."""
    groups = qkv.view(config.num_kv_heads, config.num_groups + 2, config.head_dim, *qkv.shape[1:])
    queries, keys, values = groups.split_with_sizes([config.num_groups, 1, 1], dim=1)
    return torch.cat([part.flatten(0, 2) for part in (queries, keys, values)])
