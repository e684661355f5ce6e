"""Reads a checkpoint's weights one after another, from safetensors or GGUF, quantised or not."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.errors import StartupError
from inference_api.kernels.library import UnusableWeight
from inference_api.loading.config import ModelConfig, TensorNames
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.files import opened, read_numbers, tensor_places
from inference_api.loading.gguf import is_gguf
from inference_api.loading.numbers import Numbers
from inference_api.loading.packing.blocks import BlockTensor
from inference_api.loading.quantised.weights import QuantisedTensor, read_quantised

Weight = Numbers | BlockTensor
Write = Callable[[Weight], object]  # writes a weight to its parameter


def write_weights(
    files: Sequence[Path],
    targets: Iterable[tuple[SourceTensor, Write]],
    config: ModelConfig,
    pause: Callable[[], None] = lambda: None,
) -> None:
    """Read every weight directly into its parameters. Besides these, only the weight being read
    takes memory.

    Files are not mapped, because the process dies if a mapped file becomes shorter. The caller has
    compared the files' headers with the plan. `pause` is called between weights. Raises
    StartupError if a file cannot be read to its end, or a weight cannot be packed.
    """
    # Keyed by name in the checkpoint; a tied embedding has two writes.
    writes: dict[str, list[Write]] = {}
    parts: dict[str, SourceTensor] = {}
    for part, write in targets:
        writes.setdefault(part.name, []).append(write)
        parts[part.name] = part
    for name, weight in read_weights(files, parts, config):
        try:
            for write in writes.pop(name):
                write(weight)
        except UnusableWeight as error:
            raise StartupError(f"{name} cannot be loaded: {error}; get the model again.") from error
        pause()
    assert not writes, f"headers were checked, yet {sorted(writes)} were not in the files"


def read_weights(
    files: Sequence[Path], parts: Mapping[str, SourceTensor], config: ModelConfig
) -> Iterator[tuple[str, Weight]]:
    """Yields `parts` by their names in the checkpoint, in the order of the files, with rows in our
    order. Only the yielded one takes memory. Raises StartupError."""

    def convert(read: tuple[str, Numbers | QuantisedTensor]) -> tuple[str, Weight]:
        name, weight = read
        return name, _converted(weight, parts[name])

    if config.quantisation is not None:
        quantised = read_quantised(files, parts, config.quantisation, config.tensor_names)
        yield from map(convert, quantised)
        return
    for file in files:
        if is_gguf(file):
            from inference_api.loading.gguf.blocks import read_parts

            yield from read_parts(file, parts)
        else:
            yield from map(convert, _read(file, parts.keys(), config.tensor_names))


def converted(numbers: Numbers, part: SourceTensor) -> Numbers:
    """Returns a tensor of safetensors with its rows in our order, and its offset and factors
    applied; see `SourceTensor`."""
    data = numbers.data.reshape(-1) if len(part.shape) == 1 else numbers.data
    numbers = Numbers(numbers.kind, _reordered(data, part))
    if part.factors:
        return Numbers("F32", numbers.floats() * part.row_factors[:, None])
    return Numbers("F32", numbers.floats() + np.float32(part.offset)) if part.offset else numbers


def _read(file: Path, wanted: Collection[str], names: TensorNames) -> Iterator[tuple[str, Numbers]]:
    places = {name: place for name, place in tensor_places(file, names).items() if name in wanted}
    with opened(file) as stream:
        for name, place in sorted(places.items(), key=lambda each: each[1].begin):
            yield name, read_numbers(stream, name, place)


def _converted(weight: Numbers | QuantisedTensor, part: SourceTensor) -> Numbers | QuantisedTensor:
    if isinstance(weight, Numbers):
        return converted(weight, part)
    weight = weight.reordered(partial(_reordered, part=part))
    return weight.multiplied(part.row_factors) if part.factors else weight


def _reordered(rows: NDArray[Any], part: SourceTensor) -> NDArray[Any]:
    if part.head_order:
        heads = rows.reshape(-1, len(part.head_order), *rows.shape[1:])
        rows = heads[:, part.head_order].reshape(rows.shape)
    return rows
