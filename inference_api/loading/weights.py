"""Loads a model's parameters for the kernels, one tensor at a time."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference_api.kernels.interface import Floats
from inference_api.kernels.library import Kernels, PackedWeight
from inference_api.kernels.packing import FLOAT_BITS, Bits
from inference_api.loading import layout
from inference_api.loading.config import ModelConfig
from inference_api.loading.families.layer_plan import ParameterSources, SourceTensor
from inference_api.loading.numbers import Pack
from inference_api.loading.packing.layout import ALIGNMENT_BYTES
from inference_api.loading.packing.pages import anonymous
from inference_api.loading.stream import Weight, Write, write_weights


class Packing(NamedTuple):
    """The kernels, and the form in which they pack weights."""

    kernels: Kernels
    bits: Bits


@dataclass(frozen=True, slots=True)
class Parameters:
    """Weights by their names in `weight_plan`, and "head", which is the embedding if they are tied.
    Matrices are packed, vectors are not."""

    tensors: dict[str, Floats]
    packed: dict[str, PackedWeight]
    packing: Packing

    def of_mtp(self, num_guessed: int) -> "Parameters":
        """Returns the parameters of the layer that guesses further tokens, as a model with this
        one's embedding and head, cut to `num_guessed` logits."""
        head = self.packed[layout.HEAD].part(0, num_guessed)
        ends = {layout.EMBEDDING: self.packed[layout.EMBEDDING], layout.HEAD: head}
        return Parameters(
            _behind(layout.MTP, self.tensors), ends | _behind(layout.MTP, self.packed), self.packing
        )

    def qk_norm(self, config: ModelConfig, layer: int) -> Floats | None:
        """Returns the norm weights of a layer's queries and keys, [heads + kv_heads, head_dim]."""
        if not config.has_qk_norm or not config.attends(layer):
            return None
        shape = config.shape_of(layer)
        counts = {"q_norm": config.num_heads, "k_norm": shape.num_kv_heads}
        norms = [
            np.resize(self.tensors[f"layers.{layer}.{name}"], (count, shape.head_dim))
            for name, count in counts.items()
            if shape.kv_source is None or name == "q_norm"
        ]  # repeated if all heads share one
        return np.concatenate(norms)


Parameter = TypeVar("Parameter", Floats, PackedWeight)


def _behind(prefix: str, named: Mapping[str, Parameter]) -> dict[str, Parameter]:
    return {
        name.removeprefix(prefix): each for name, each in named.items() if name.startswith(prefix)
    }


Memory = Mapping[str, NDArray[np.uint8]]  # zeros for each parameter, by name


def load_parameters(
    files: Sequence[Path],
    config: ModelConfig,
    dtype: str,
    packing: Packing,
    memory: Memory | None = None,
    pause: Callable[[], None] = lambda: None,
) -> Parameters:
    """Read every parameter directly into its packed form, or into its vector. For `dtype` and
    `memory` see `empty_parameters`, for `pause` `write_weights`. Raises StartupError."""
    parameters = empty_parameters(config, dtype, packing, memory)
    write_weights(files, _targets(parameters, config), config, pause)
    return parameters


def empty_parameters(
    config: ModelConfig, dtype: str, packing: Packing, memory: Memory | None = None
) -> Parameters:
    """Returns parameters in the forms of `layout.parameter_forms`, in `memory` or new memory.

    `dtype` is that of the embedding, unless the checkpoint has it in fewer bits."""
    forms = layout.parameter_forms(config, FLOAT_BITS[dtype] // 8, packing.bits)
    memory = memory or _huge_pages(forms)
    tensors: dict[str, Floats] = {}
    packed: dict[str, PackedWeight] = {}
    for name, form in forms.items():
        if form.bits is None:
            tensors[name] = memory[name].view(np.float32).reshape(form.shape)
        else:
            outputs, inputs = form.shape
            packed[name] = PackedWeight.empty(form.bits, outputs, inputs, memory[name])
    if layout.EMBEDDING in packed and config.is_head_tied:
        packed.setdefault(layout.HEAD, packed[layout.EMBEDDING])
    return Parameters(tensors, packed, packing)


def _huge_pages(forms: Mapping[str, layout.TensorForm]) -> Memory:
    """Returns one piece of memory for all parameters, so that small ones lie in huge pages, too: a
    step reads nearly all of them, and looking up small pages takes time."""
    sizes = [-(-form.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for form in forms.values()]
    pages = np.frombuffer(anonymous(sum(sizes), mmap.MADV_HUGEPAGE), np.uint8)
    parts = zip(forms.items(), np.split(pages, np.cumsum(sizes)[:-1]), strict=True)
    return {name: part[: form.num_bytes] for (name, form), part in parts}


def _targets(parameters: Parameters, config: ModelConfig) -> Iterator[tuple[SourceTensor, Write]]:
    pack, packed = parameters.packing.kernels.pack, parameters.packed
    writes = {name: partial(_copy, vector) for name, vector in parameters.tensors.items()}
    for name, weight in packed.items():
        if layout.K_B in name:
            values = packed[name.replace(layout.K_B, layout.V_B)]
            name = name.replace(layout.K_B, layout.KV_B)
            writes[name] = partial(_pack_heads, config, pack, weight, values)
        elif layout.V_B not in name and (
            name != layout.HEAD or weight is not packed.get(layout.EMBEDDING)
        ):
            writes[name] = partial(_pack, pack, weight)
    return source_writes(layout.weight_plan(config) | layout.linear_weights(config), writes)


def source_writes(
    plan: ParameterSources, writes: Mapping[str, Callable[[int, Weight], None]]
) -> Iterator[tuple[SourceTensor, Write]]:
    """Yields each tensor that the parameters in `writes` are made of, with the write to its rows,
    whose first one it is given."""
    for name, write in writes.items():
        first = 0
        for part in plan[name]:
            yield part, partial(write, first)
            first += part.shape[0]


def _pack(pack: Pack, packed: PackedWeight, first_output: int, weight: Weight) -> None:
    weight.pack_into(pack, packed, first_output)


def _pack_heads(
    config: ModelConfig,
    pack: Pack,
    keys: PackedWeight,
    values: PackedWeight,
    first_output: int,
    weight: Weight,
) -> None:
    """See `latent_forms`."""
    assert first_output == 0, "it is made of one tensor"
    numbers = np.concatenate([numbers for _, numbers in weight.rows()])
    heads = numbers.reshape(config.num_heads, -1, numbers.shape[-1])
    unturned = config.head_dim - config.rotary_dim
    of_keys, of_values = heads[:, :unturned].transpose(0, 2, 1), heads[:, unturned:]
    for packed, each in ((keys, of_keys), (values, of_values)):
        outputs = packed.outputs // config.num_heads
        padded = np.zeros((config.num_heads, outputs, packed.inputs), np.float32)
        padded[:, : each.shape[1], : each.shape[2]] = each
        pack(padded.reshape(packed.outputs, packed.inputs), packed, 0)


def _copy(vector: Floats, first: int, weight: Weight) -> None:
    for at, numbers in weight.rows():
        place = vector[first + at : first + at + len(numbers)]
        place[:] = numbers.reshape(place.shape)  # GGUF leaves out dimensions of size 1
