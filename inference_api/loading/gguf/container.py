"""Reads the container of a GGUF file: its metadata, and the places of its tensors.

The sizes that a file claims are checked before memory is spent on them. The package `gguf` reads
files, too, but makes an object or two for each value of a list, of some 500 bytes each.
"""

from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_MAGIC, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from inference_api.loading.gguf import TYPES

VERSIONS = (2, 3)
# With 262,144 tokens, like Gemma's, metadata has 1.3 million values in lists, and 15 MB.
MAX_VALUES = 4_000_000  # in all lists of metadata together
MAX_HEADER_BYTES = 64 * 1024**2  # size of metadata and the list of tensors
MAX_ENTRIES = 20_000  # entries of metadata; also the limit of tensors
MAX_DIMENSIONS = 4
SHOWN_CHARS = 100  # characters of a name in messages
BUFFER_BYTES = 1024**2

_TYPES = {GGMLQuantizationType[name] for name in TYPES}
_DTYPES = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


class Unreadable(Exception):
    """A fault of a file, with its remedy."""


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
        magic, version = header.integer(4), header.integer(4)
        if magic != GGUF_MAGIC or version not in VERSIONS:
            raise Unreadable(
                f"it is no GGUF file of versions {VERSIONS} for little-endian processors; choose "
                "another file"
            )
        num_tensors, num_entries = header.integer(8), header.integer(8)
        if max(num_tensors, num_entries) > MAX_ENTRIES:
            raise ValueError(
                f"{num_entries} entries of metadata and {num_tensors} tensors; each may be "
                f"{MAX_ENTRIES} at most"
            )
        metadata = dict(header.entry() for _ in range(num_entries))
        tensors = [header.tensor() for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not (isinstance(alignment, int) and alignment > 0 and alignment.bit_count() == 1):
        raise ValueError(f"general.alignment={alignment!r:.100} is no power of two")
    begin = _aligned(header.end, alignment)
    placed = {each.name: each._replace(begin=begin + each.begin) for each in tensors}
    if len(metadata) < num_entries or len(placed) < num_tensors:
        raise ValueError("two entries or tensors of the same name")
    return GgufFile(metadata, header.kinds, placed, begin, alignment)


class _Header:
    """Reads the beginning of a file, value after value. Raises ValueError or LookupError."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._num_values = 0  # elements of all lists read so far
        self.end = 0  # byte after what has been read
        self.kinds: dict[str, list[GGUFValueType]] = {}

    def content(self, num_bytes: int) -> bytes:
        self.end += num_bytes
        if self.end > MAX_HEADER_BYTES:
            raise ValueError(
                f"{num_bytes} bytes of metadata or names up to byte {self.end}; they may end at "
                f"{MAX_HEADER_BYTES} at most"
            )
        content = self._stream.read(num_bytes)
        if len(content) < num_bytes:
            raise ValueError(f"it ends before byte {self.end}")
        return content

    def integer(self, num_bytes: int) -> int:
        return int.from_bytes(self.content(num_bytes), "little")

    def values(self, kind: GGUFValueType, count: int = 1) -> list[Any]:
        if kind == GGUFValueType.STRING:
            return [self.text() for _ in range(count)]
        dtype = np.dtype(kind.name.lower())
        values: list[Any] = np.frombuffer(self.content(count * dtype.itemsize), dtype).tolist()
        return values

    def text(self) -> str:
        return self.content(self.integer(8)).decode()

    def entry(self) -> tuple[str, Any]:
        """Returns an entry of metadata: its key and value."""
        key, kind = self.text(), GGUFValueType(self.integer(4))
        self.kinds[key] = [kind]
        if kind != GGUFValueType.ARRAY:
            return key, self.values(kind)[0]
        kind, length = GGUFValueType(self.integer(4)), self.integer(8)
        self.kinds[key].append(kind)
        self._num_values += length
        if kind == GGUFValueType.ARRAY or self._num_values > MAX_VALUES:
            what = "lists" if kind == GGUFValueType.ARRAY else f"{length} values"
            raise ValueError(
                f"{key[:SHOWN_CHARS]} is a list of {what}; lists have no lists, and together "
                f"{MAX_VALUES} values at most"
            )
        return key, self.values(kind, length)

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
