"""The layout of packed files: a model's parameters as they are in memory.

A file is a preamble, a JSON header, zeros up to a page, and the parameters' bytes, each at a
multiple of 64. Configuration and form determine everything except the checksums, so a file's size
is known in advance, and a file with any other header is refused.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple, Self
from zlib import crc32

from inference_api.kernels.packing import BITS, FILE_BITS, FLOAT_BITS, Bits
from inference_api.loading.config import ModelConfig
from inference_api.loading.layout import TensorForm, parameter_forms, torch_forms

MAGIC = b"\x93HEARTH\n"
VERSION = 1
PREAMBLE = Struct("<8sIIQQ")  # magic, version, CRC-32 of the rest, bytes of header and of file
CHECKED_FROM = 16  # byte of the preamble where the CRC-32 begins
ALIGNMENT_BYTES = 64
PAGE_BYTES = 4096
DTYPES: dict[int, str] = {bits: name for name, bits in (BITS | FLOAT_BITS | FILE_BITS).items()}
NO_KEY, NO_CRC = "0" * 64, "0" * 8


class UnusablePackedFile(Exception):
    """A packed file is unusable; says why, and at which byte."""

    def __init__(self, fault: str, at_byte: int) -> None:
        super().__init__(f"{fault}, at byte {at_byte}")


class PackedTensor(NamedTuple):
    """A parameter's form, and its place in a file."""

    name: str
    form: TensorForm
    begin: int

    @property
    def end(self) -> int:
        return self.begin + self.form.num_bytes


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The tensors of a file, in ascending order."""

    tensors: Sequence[PackedTensor]
    begin: int  # byte of the first tensor
    file_bytes: int

    @classmethod
    def of(
        cls, config: ModelConfig, dtype_bytes: int, bits: Bits | None, by_torch: bool = False
    ) -> Self:
        forms = (torch_forms if by_torch else parameter_forms)(config, dtype_bytes, bits)
        # The header's length depends on the digits of the places, so places count from the first
        # tensor and not from the header's end.
        places = list(_places(forms))
        begin = _aligned(PREAMBLE.size + len(_json(places, NO_KEY, {})), PAGE_BYTES)
        tensors = [place._replace(begin=begin + place.begin) for place in places]
        return cls(tensors, begin, tensors[-1].end)

    def head(self, key: str = NO_KEY, crcs: Mapping[str, int] = MappingProxyType({})) -> bytes:
        """Returns the file's bytes before the first tensor. `crcs` has the CRC-32 of each tensor by
        name; `key` is the hash of the file's sources, in 64 characters."""
        header = _json(self._relative, key, crcs)
        checked = PREAMBLE.pack(MAGIC, VERSION, 0, len(header), self.file_bytes)[CHECKED_FROM:]
        crc = crc32(header, crc32(checked))
        preamble = PREAMBLE.pack(MAGIC, VERSION, crc, len(header), self.file_bytes)
        return (preamble + header).ljust(self.begin, b"\0")

    def read_crcs(self, file: int, key: str) -> Mapping[str, int]:
        """Returns the checksums in an open file's header. Does not read the tensors. Raises
        OSError, or UnusablePackedFile if the file has another layout, size or key."""
        size = os.fstat(file).st_size
        head = os.pread(file, self.begin, 0)
        if len(head) < PREAMBLE.size:
            raise UnusablePackedFile(f"it ends within its preamble of {PREAMBLE.size}", len(head))
        magic, version, crc, header_bytes, file_bytes = PREAMBLE.unpack_from(head)
        if magic != MAGIC:
            raise UnusablePackedFile("it is no packed file", 0)
        if version != VERSION:
            raise UnusablePackedFile(f"it has version {version} and not {VERSION}", len(MAGIC))
        if size != file_bytes:
            raise UnusablePackedFile(f"it has {size} bytes and says {file_bytes}", size)
        header = head[PREAMBLE.size : PREAMBLE.size + header_bytes]
        if crc32(header, crc32(head[CHECKED_FROM : PREAMBLE.size])) != crc:
            raise UnusablePackedFile("its header does not match its checksum", PREAMBLE.size)
        crcs = self._crcs(header)
        if head != self.head(key, crcs):
            raise UnusablePackedFile(
                "its header is of other weights or another form", PREAMBLE.size
            )
        return crcs

    @property
    def _relative(self) -> Sequence[PackedTensor]:
        return [each._replace(begin=each.begin - self.begin) for each in self.tensors]

    def _crcs(self, header: bytes) -> Mapping[str, int]:
        try:
            entries: Any = json.loads(header)["tensors"]
            return {entry["name"]: int(entry["crc32"], 16) for entry in entries}
        except (ValueError, LookupError, TypeError) as error:
            raise UnusablePackedFile(f"its header is damaged ({error})", PREAMBLE.size) from None


def _places(forms: Mapping[str, TensorForm]) -> Iterator[PackedTensor]:
    begin = 0
    for name, form in forms.items():
        yield PackedTensor(name, form, begin)
        begin = _aligned(begin + form.num_bytes, ALIGNMENT_BYTES)


def _json(tensors: Sequence[PackedTensor], key: str, crcs: Mapping[str, int]) -> bytes:
    """Returns the header. Its length does not depend on key and checksums."""
    entries = [
        {
            "name": name,
            "kind": "tensor" if form.bits is None else "packed",
            "dtype": DTYPES[8 * form.element_bytes if form.bits is None else form.bits],
            "shape": form.shape,
            "begin": begin,
            "bytes": form.num_bytes,
            "crc32": f"{crcs[name]:08x}" if name in crcs else NO_CRC,
        }
        for name, form, begin in tensors
    ]
    return json.dumps({"key": key, "tensors": entries}).encode()


def _aligned(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment
