"""Reads the container of a GGUF file: its metadata, and the places of its tensors."""

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from common.gguf_header import SHOWN_CHARS, GgufHeader, Unreadable
from inference_api.loading.gguf import TYPES

MAX_DIMENSIONS = 4
BUFFER_BYTES = 1024**2

_TYPES = {GGMLQuantizationType[name] for name in TYPES}
_DTYPES = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


class FileTensor(NamedTuple):
    """A tensor in a file, or some rows of one."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]  # [rows, …, columns]
    begin: int  # byte in the file

    @property
    def num_bytes(self) -> int:
        values, num_bytes = GGML_QUANT_SIZES[self.kind]
        return prod(self.shape) // values * num_bytes

    def read(self, file: Path) -> NDArray[Any]:
        """Returns a copy of the data: F32 and F16 as floats, other types as the bytes of rows.
        Raises OSError or ValueError."""
        data = np.fromfile(file, np.uint8, self.num_bytes, offset=self.begin)
        if missing := self.num_bytes - data.size:
            raise ValueError(f"it lacks {missing} bytes of {self.name[:SHOWN_CHARS]}")
        return data.view(_DTYPES.get(self.kind, np.uint8)).reshape(*self.shape[:-1], -1)


class GgufFile(NamedTuple):
    """The contents of a file, by name."""

    metadata: dict[str, Any]
    kinds: dict[str, list[GGUFValueType]]  # an entry's; of a list, also its values'
    tensors: dict[str, FileTensor]
    begin: int  # byte of the first tensor
    alignment: int

    def check_extent(self, size: int) -> None:
        """Check that tensors follow each other to the file's end, without gaps or overlaps. Raises
        Unreadable."""
        end = expected = self.begin
        for tensor in self.tensors.values():
            if tensor.begin != expected:
                raise Unreadable(
                    f"tensor {tensor.name[:SHOWN_CHARS]} begins at byte {tensor.begin} instead of "
                    f"{expected}; the file is damaged, get it again"
                )
            end = expected + tensor.num_bytes
            expected = _aligned(end, self.alignment)
        if not end <= size <= expected:
            raise Unreadable(
                f"it has {size} bytes, its tensors end at {end}; the file is damaged, get it again"
            )


def read_container(path: Path) -> GgufFile:
    """Returns the contents of a file. Raises Unreadable, OSError, and ValueError or LookupError if
    it is damaged."""
    with path.open("rb", buffering=BUFFER_BYTES) as stream:
        header = _Header(stream)
        tensors = [header.tensor() for _ in range(header.num_tensors)]
    metadata = header.metadata
    alignment = metadata.get("general.alignment", 32)
    if not (isinstance(alignment, int) and alignment > 0 and alignment.bit_count() == 1):
        raise ValueError(f"general.alignment={alignment!r:.100} is no power of two")
    begin = _aligned(header.end, alignment)
    placed = {each.name: each._replace(begin=begin + each.begin) for each in tensors}
    if len(metadata) < header.num_entries or len(placed) < header.num_tensors:
        raise ValueError("two entries or tensors of the same name")
    return GgufFile(metadata, header.kinds, placed, begin, alignment)


class _Header(GgufHeader):
    """Reads the tensors, too, which follow the metadata."""

    def tensor(self) -> FileTensor:
        """Returns a tensor, whose `begin` is relative to the first one."""
        name, num_dimensions = self.text(), self.integer(4)
        if num_dimensions > MAX_DIMENSIONS:
            raise ValueError(
                f"{name[:SHOWN_CHARS]} has {num_dimensions} dimensions, of {MAX_DIMENSIONS} at most"
            )
        shape = tuple(reversed(self.values(GGUFValueType.UINT64, num_dimensions)))
        number, begin = self.integer(4), self.integer(8)
        if number not in _TYPES:
            known = {int(kind): kind.name for kind in GGMLQuantizationType}
            names = ", ".join(kind.name for kind in sorted(_TYPES))
            raise Unreadable(
                f"tensor {name[:SHOWN_CHARS]} has quantisation type {known.get(number, number)}, "
                f"which is none of {names}; choose a file of one of these types"
            )
        kind = GGMLQuantizationType(number)
        if (shape or (1,))[-1] % GGML_QUANT_SIZES[kind][0]:
            raise ValueError(f"{name[:SHOWN_CHARS]} has rows of {shape[-1]} values in {kind.name}")
        return FileTensor(name, kind, shape, begin)


def _aligned(end: int, alignment: int) -> int:
    return -(-end // alignment) * alignment
