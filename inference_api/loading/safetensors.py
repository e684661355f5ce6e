"""Single tensors of safetensors files. They are read and not mapped: a file that is cut short while
it is mapped ends the process."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

from inference_api.errors import StartupError
from inference_api.loading.files import TensorLocation

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
QUANTISED = {
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "I32": torch.int32,
    "U8": torch.uint8,
}


@contextmanager
def opened(file: Path) -> Iterator[FileIO]:
    """Raises StartupError where what is read meanwhile is damaged."""
    try:
        with file.open("rb", buffering=0) as stream:
            yield stream
    except (OSError, EOFError) as error:
        raise StartupError([f"{file} is damaged ({error}); get the file again."]) from None


def read_tensor(
    stream: FileIO, name: str, place: TensorLocation, is_quantised: bool = False
) -> Tensor:
    """Raises OSError, EOFError, and StartupError where it is not of a type that is served."""
    known = {**FLOATS, **QUANTISED} if is_quantised else FLOATS
    if place.stored.dtype not in known:
        raise StartupError(
            [
                f"{name} is {place.stored.dtype}; choose a float32, float16 or "
                "bfloat16 checkpoint, or a GGUF file."
            ]
        )
    numbers = torch.empty(place.end - place.begin, dtype=torch.uint8)
    stream.seek(place.begin)
    _read_into(numbers, stream)
    return _shaped(numbers.view(known[place.stored.dtype]), place)


def _shaped(numbers: Tensor, place: TensorLocation) -> Tensor:
    shape, rows = place.stored.shape, place.rows
    if rows is None:
        return numbers.view(shape)
    whole = [shape[0] * rows.step, *shape[1:]]
    matrix = numbers.view(whole[::-1]).mT if rows.is_transposed else numbers.view(whole)
    return matrix[rows.first :: rows.step]


def _read_into(numbers: Tensor, stream: FileIO) -> None:
    """Raises EOFError."""
    rest = numbers.numpy().data
    while rest:
        num_bytes = stream.readinto(rest)
        if not num_bytes:
            raise EOFError(f"it lacks {len(rest)} bytes of a tensor")
        rest = rest[num_bytes:]
