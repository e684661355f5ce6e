"""The files of a model's weights: their headers, and single tensors of safetensors files. Files are
not mapped, because the process dies if a mapped file becomes shorter."""

import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from itertools import islice
from math import prod
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference_api.errors import StartupError, shown
from inference_api.loading.config import ModelConfig, TensorNames
from inference_api.loading.families.mixtures import MAX_ALL_EXPERTS
from inference_api.loading.families.tensor_names import SCHEMES
from inference_api.loading.gguf import IN_HALVES, TYPES, is_gguf, read_gguf
from inference_api.loading.json_files import MAX_JSON_BYTES, parse_json, read_json
from inference_api.loading.layout import (
    StoredTensor,
    Tensors,
    mtp_plan,
    name_of_text_model,
    num_layers_in,
    weight_plan,
)
from inference_api.loading.numbers import DTYPES, FLOATS, Numbers
from inference_api.loading.quantised.formats import Wanted, wants
from inference_api.loading.stacks import Rows, singles

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"  # listed in the index
REMEDY_OF_DTYPES = "choose a float32, float16 or bfloat16 checkpoint, or a GGUF file."
LENGTH_BYTES = 8  # a file begins with the length of its JSON header
MAX_DIMENSIONS = 8
MAX_TENSORS = 6 * MAX_ALL_EXPERTS  # an expert has three, and as many scales
MAX_DTYPE_CHARS = 16


def weight_files(folder: Path) -> list[Path]:
    """Returns the files of the model in a folder, or its one GGUF file. Raises StartupError if some
    are missing."""
    if is_gguf(folder):
        return [folder]
    files = [folder / name for name in _file_names(folder)]
    missing = [file.name for file in files if not file.is_file()]
    if not missing:
        return files
    if missing == [WEIGHTS] and any(folder.glob(SHARDS)):
        missing = [WEIGHTS_INDEX]
    if any(folder.glob("*.bin")):
        raise StartupError(
            f"{folder} has only .bin weights, which can run code when they are read; convert "
            "them to safetensors with transformers: load the model, then save_pretrained."
        )
    raise StartupError(
        f"{folder} lacks weights: {shown(missing)}; get the model again, in safetensors format."
    )


class TensorLocation(NamedTuple):
    """A tensor of a safetensors file, and its range of bytes in the file. With `rows`, it is only
    these rows of what is stored there."""

    stored: StoredTensor
    begin: int
    end: int
    rows: Rows | None = None


def tensor_places(file: Path, names: TensorNames) -> dict[str, TensorLocation]:
    """Returns a model's tensors in a safetensors file, by name. Raises StartupError."""
    return _unstacked(stored_places(file, name_of_text_model), names)


def stored_places(file: Path, rename: Callable[[str], str]) -> dict[str, TensorLocation]:
    """Returns the tensors of a safetensors file as they are stored, with their names changed by
    `rename`. Raises StartupError if the file is cut short or damaged."""
    try:
        start, entries = read_entries(file)
        places = {rename(name): _place(name, entry, start) for name, entry in entries.items()}
        if len(places) < len(entries):
            raise ValueError("two tensors would have the same name")
        return places
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StartupError(
            f"{file} is damaged or incomplete ({error}); get the file again."
        ) from None


def unstacked(tensors: Tensors, names: TensorNames) -> Tensors:
    """Returns the tensors with single experts instead of stacks of them. Needs only headers."""
    places = {
        name: TensorLocation(stored, 0, prod(stored.shape)) for name, stored in tensors.items()
    }
    return {name: place.stored for name, place in _unstacked(places, names).items()}


def _unstacked(
    places: Mapping[str, TensorLocation], names: TensorNames
) -> dict[str, TensorLocation]:
    """Returns the tensors with single experts instead of stacks of them, by a scheme's names.
    Raises StartupError."""
    single = dict(islice(_singles(places, names), MAX_TENSORS + 1))
    _check_count(single)
    return single


def _check_count(tensors: Collection[str]) -> None:
    if len(tensors) > MAX_TENSORS:
        raise StartupError(
            f"The weights have more than {MAX_TENSORS} tensors, each expert's counted; choose "
            "another model."
        )


def _singles(
    places: Mapping[str, TensorLocation], names: TensorNames
) -> Iterator[tuple[str, TensorLocation]]:
    published_parts = SCHEMES[names].published_parts
    for name, place in places.items():
        for saved, published in published_parts.items():
            name = name.replace(saved, published)
        stored, begin, end, _ = place
        stacked = singles(name, stored.shape, end - begin, names)
        if stacked is None:
            yield name, place
            continue
        for each in stacked:
            single = StoredTensor(each.shape, stored.dtype)
            yield each.name, TensorLocation(single, begin + each.begin, begin + each.end, each.rows)


def read_entries(file: Path) -> tuple[int, dict[str, Any]]:
    """Returns the byte where the tensors of a safetensors file begin, and the header's entries.
    Raises OSError, ValueError, LookupError or TypeError."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        if not 2 <= header_bytes <= min(size - LENGTH_BYTES, MAX_JSON_BYTES):
            raise ValueError(
                f"its header should have {header_bytes} bytes, at byte 0, and the file has {size}"
            )
        try:
            header = parse_json(stream.read(header_bytes))
        except ValueError as error:
            raise ValueError(f"its header, at byte {LENGTH_BYTES}: {error}") from None
    header.pop("__metadata__", None)
    if not header:
        raise ValueError("it has no tensors")
    start = end = LENGTH_BYTES + header_bytes
    for begin, next_begin in sorted(entry["data_offsets"] for entry in header.values()):
        if start + begin != end:
            raise ValueError(f"a tensor begins at byte {start + begin!s:.40} instead of {end}")
        end = start + next_begin
    if size != end:
        raise ValueError(f"its tensors should end at byte {end}, and it ends at byte {size}")
    return start, header


def _place(name: str, entry: Any, start: int) -> TensorLocation:
    """Returns where a tensor is. Raises ValueError, LookupError or TypeError."""
    shape, dtype = tuple(map(index, entry["shape"])), str(entry["dtype"])
    if len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError(f"{name[:100]}: a tensor of the shape {shown([*map(str, shape)])}")
    if len(dtype) > MAX_DTYPE_CHARS:
        raise ValueError(f"{name[:100]}: numbers of the type {dtype[:MAX_DTYPE_CHARS]}...")
    begin, end = map(index, entry["data_offsets"])
    if not 0 <= begin <= end:
        raise ValueError(f"{name[:100]}: a tensor from byte {begin} to {end}")
    if dtype in DTYPES and prod(shape) * DTYPES[dtype].itemsize != end - begin:
        raise ValueError(
            f"{name[:100]}: {end - begin} bytes cannot be {dtype} of {reprlib.repr([*shape])}, at "
            f"byte {start + begin}"
        )
    return TensorLocation(StoredTensor(shape, dtype), start + begin, start + end)


def read_headers(files: Sequence[Path], names: TensorNames) -> Tensors:
    """Returns all tensors in `files`, by their names in safetensors. Raises StartupError if a file
    is cut short, or not of the format that its name says."""
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        if is_gguf(file):
            tensors |= read_gguf(file).stored
        else:
            tensors |= {name: place.stored for name, place in tensor_places(file, names).items()}
        _check_count(tensors)
    return tensors


def shape_faults(tensors: Tensors, config: ModelConfig) -> list[str]:
    """Returns a fault for each tensor that is missing or not of config.json's shape."""
    num_layers = num_layers_in(tensors, config)
    if config.num_layers > num_layers:
        return [
            f"num_hidden_layers={config.num_layers} in config.json, but the weights have only "
            f"{num_layers} layers; get the model again."
        ]
    parts = [part for parts in weight_plan(config).values() for part in parts]
    wanted = [each for part in parts for each in wants(part, config.quantisation, tensors) if each]
    return tensor_faults(wanted, tensors)


def has_mtp(tensors: Tensors, config: ModelConfig) -> bool:
    """Returns whether the layer that guesses further tokens is complete. Many checkpoints lack it,
    although their config.json lists it."""
    parts = [part for parts in mtp_plan(config).values() for part in parts]
    wanted = [each for part in parts for each in wants(part, config.quantisation, tensors) if each]
    return bool(wanted) and all(each.name in tensors for each in wanted)


def tensor_faults(wanted: Sequence[Wanted], tensors: Tensors) -> list[str]:
    """Returns a fault for each tensor that is missing, or of a wrong shape or type."""
    missing = [each.name for each in wanted if each.name not in tensors]
    present = [(each, tensors[each.name]) for each in wanted if each.name in tensors]
    misshapen = [
        f"{each.name} is {list(stored.shape)} instead of {list(each.shapes[0])}"
        for each, stored in present
        if stored.shape not in each.shapes
    ]
    mistyped = [
        f"{each.name} is {stored.dtype} instead of {' or '.join(each.dtypes)}"
        for each, stored in present
        if each.dtypes and stored.dtype not in each.dtypes
    ]
    unread = [
        f"{each.name} is {stored.dtype}"
        for each, stored in present
        if not each.dtypes and stored.dtype.removesuffix(IN_HALVES) not in TYPES
    ]
    otherwise = "The weights are not as quantization_config in config.json says:"
    faults = {
        f"{shown(unread)}; {REMEDY_OF_DTYPES}": unread,
        f"The weights lack {shown(missing)}; get the model again.": missing,
        f"The weights do not fit config.json: {shown(misshapen)}; get the model again.": misshapen,
        f"{otherwise} {shown(mistyped)}; get the model again.": mistyped,
    }
    return [fault for fault, names in faults.items() if names]


def _file_names(folder: Path) -> list[str]:
    index = folder / WEIGHTS_INDEX
    if not index.exists():
        return [WEIGHTS]
    by_tensor = read_json(index).get("weight_map")
    names = list(by_tensor.values()) if isinstance(by_tensor, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise StartupError(f"{index} names no weights; get the file again.")
    return sorted(set(names))


@contextmanager
def opened(file: Path) -> Iterator[FileIO]:
    """Opens a file. Raises StartupError if reading inside the context fails."""
    try:
        with file.open("rb", buffering=0) as stream:
            yield stream
    except (OSError, EOFError) as error:
        raise StartupError(f"{file} is damaged ({error}); get the file again.") from None


def read_numbers(
    stream: FileIO, name: str, place: TensorLocation, kinds: Collection[str] = FLOATS
) -> Numbers:
    """Returns a tensor. Raises OSError, EOFError, or StartupError for another dtype."""
    kind = place.stored.dtype
    if kind not in kinds:
        raise StartupError(f"{name} is {kind}; {REMEDY_OF_DTYPES}")
    stream.seek(place.begin)
    content = np.fromfile(stream, np.uint8, place.end - place.begin)
    if missing := place.end - place.begin - len(content):
        raise EOFError(f"it lacks {missing} bytes of a tensor")
    return Numbers(kind, _shaped(content.view(DTYPES[kind]), place))


def _shaped(numbers: NDArray[Any], place: TensorLocation) -> NDArray[Any]:
    shape, rows = place.stored.shape, place.rows
    if rows is None:
        return numbers.reshape(shape)
    sizes = [shape[0] * rows.step, *shape[1:]]
    matrix = numbers.reshape(sizes[::-1]).T if rows.is_transposed else numbers.reshape(sizes)
    return matrix[rows.first :: rows.step]
