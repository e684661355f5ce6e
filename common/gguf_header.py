"""Reads the beginning of a GGUF file: its metadata, whose size is checked before memory is spent.
The package `gguf` makes an object or two for each value of a list, of some 500 bytes each."""

from typing import Any, BinaryIO

import numpy as np
from gguf import GGUF_MAGIC, GGUFValueType

VERSIONS = (2, 3)
# With 262,144 tokens, like Gemma's, metadata has 1.3 million values in lists, and 15 MB.
MAX_VALUES = 4_000_000  # in all lists of metadata together
MAX_HEADER_BYTES = 64 * 1024**2  # size of metadata and the list of tensors
MAX_ENTRIES = 20_000  # entries of metadata; also the limit of tensors
SHOWN_CHARS = 100  # characters of a name in messages


class Unreadable(ValueError):
    """A fault of a file, with its remedy."""


class GgufHeader:
    """Reads the metadata of a file, value after value. Raises Unreadable, and ValueError or
    LookupError if the file is damaged."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._num_values = 0  # elements of all lists read so far
        self.end = 0  # byte after what has been read
        self.kinds: dict[str, list[GGUFValueType]] = {}  # an entry's; of a list, also its values'
        magic, version = self.integer(4), self.integer(4)
        if magic != GGUF_MAGIC or version not in VERSIONS:
            raise Unreadable(
                f"it is no GGUF file of versions {VERSIONS} for little-endian processors; choose "
                "another file"
            )
        self.num_tensors, self.num_entries = self.integer(8), self.integer(8)
        if max(self.num_tensors, self.num_entries) > MAX_ENTRIES:
            raise ValueError(
                f"{self.num_entries} entries of metadata and {self.num_tensors} tensors; each may "
                f"be {MAX_ENTRIES} at most"
            )
        self.metadata: dict[str, Any] = dict(self._entry() for _ in range(self.num_entries))

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

    def _entry(self) -> tuple[str, Any]:
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
