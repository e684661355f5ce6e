"""Reads single tensors of safetensors files. Files are not mapped, because the process dies if a
mapped file becomes shorter."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.errors import StartupError
from inference_api.loading.files import TensorLocation
from inference_api.loading.numbers import DTYPES, FLOATS, Numbers


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
        raise StartupError(
            f"{name} is {kind}; choose a float32, float16 or bfloat16 checkpoint, or a GGUF file."
        )
    content = np.empty(place.end - place.begin, np.uint8)
    stream.seek(place.begin)
    _read_into(content, stream)
    return Numbers(kind, _shaped(content.view(DTYPES[kind]), place))


def _shaped(numbers: NDArray[Any], place: TensorLocation) -> NDArray[Any]:
    shape, rows = place.stored.shape, place.rows
    if rows is None:
        return numbers.reshape(shape)
    whole = [shape[0] * rows.step, *shape[1:]]
    matrix = numbers.reshape(whole[::-1]).T if rows.is_transposed else numbers.reshape(whole)
    return matrix[rows.first :: rows.step]


def _read_into(content: NDArray[np.uint8], stream: FileIO) -> None:
    """Raises EOFError."""
    rest = content.data
    while rest:
        num_bytes = stream.readinto(rest)
        if not num_bytes:
            raise EOFError(f"it lacks {len(rest)} bytes of a tensor")
        rest = rest[num_bytes:]
