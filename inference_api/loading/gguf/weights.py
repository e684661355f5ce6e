"""Reads weights of a GGUF file, one after another."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from gguf import ReaderTensor

from inference_api.errors import StartupError
from inference_api.kernels.library import UnusableWeight
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.gguf.blocks import GgufTensor, joined
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.gguf.names import row_order
from inference_api.loading.numbers import Numbers
from inference_api.loading.stacks import in_stack


def read_parts(
    file: Path, parts: Mapping[str, SourceTensor]
) -> Iterator[tuple[str, Numbers | GgufTensor]]:
    """Yields `parts` by their names in the checkpoint, with rows in our order. Raises
    StartupError."""
    model = read_gguf(file)

    def read(tensor: ReaderTensor, number: int = 0) -> GgufTensor:
        factors = model.factors.get(tensor.name)
        factor = 1.0 if factors is None else float(factors[number % factors.size])
        try:
            return GgufTensor.read(file, tensor, factor)
        except (OSError, ValueError) as error:
            raise StartupError([f"{file} is damaged ({error}); get the file again."]) from None

    for name, halves in model.halves.items():
        if name in parts:
            yield name, _joined(file, *map(read, halves))
    for name, tensor in model.tensors.items():
        if name in parts:
            order = row_order(model.architecture, parts[name], model.config)
            single = in_stack(name)
            weight = read(tensor, 0 if single is None else single.number)
            yield name, weight.reordered(order) if order else weight


def _joined(file: Path, keys: GgufTensor, values: GgufTensor) -> Numbers:
    try:
        return joined(keys, values)
    except UnusableWeight as error:
        raise StartupError([f"{file} cannot be loaded: {error}; get the file again."]) from error
