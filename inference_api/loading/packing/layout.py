"""The layout of packed files: a model's parameters as they are in memory.

A file is a head, zeros up to a page, and the parameters' bytes, each at a multiple of 64. The head
has the parameters' checksums, and a hash of these, of their layout and of the file's sources.
Configuration and form determine the layout, so a file's size is known in advance, and a file with
any other head is refused.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, Self

import numpy as np

from inference_api.kernels.packing import Bits
from inference_api.loading.config import ModelConfig
from inference_api.loading.layout import TensorForm, parameter_forms, torch_forms

MAGIC = b"\x93HEARTH\n"
CHECKSUMS_FROM = len(MAGIC) + sha256().digest_size
CHECKSUM = np.dtype("<u4")  # a CRC-32
ALIGNMENT_BYTES = 64
PAGE_BYTES = 4096


class UnusablePackedFile(Exception):
    """A packed file is unusable. The message says why, and at which byte."""

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

    @classmethod
    def of(
        cls, config: ModelConfig, dtype_bytes: int, bits: Bits | None, by_torch: bool = False
    ) -> Self:
        forms = (torch_forms if by_torch else parameter_forms)(config, dtype_bytes, bits)
        at = _aligned(CHECKSUMS_FROM + len(forms) * CHECKSUM.itemsize, PAGE_BYTES)
        tensors = []
        for name, form in forms.items():
            tensors.append(PackedTensor(name, form, at))
            at = _aligned(tensors[-1].end, ALIGNMENT_BYTES)
        return cls(tensors)

    @property
    def begin(self) -> int:
        """Returns the byte of the first tensor."""
        return self.tensors[0].begin

    @property
    def file_bytes(self) -> int:
        return self.tensors[-1].end

    def head(self, key: str, crcs: Sequence[int]) -> bytes:
        """Returns the file's bytes before the first tensor. `key` is the hash of the file's
        sources; `crcs` has the CRC-32 of each tensor."""
        checksums = np.array(crcs, CHECKSUM).tobytes()
        digest = sha256(f"{key} {self.tensors} ".encode() + checksums).digest()
        return (MAGIC + digest + checksums).ljust(self.begin, b"\0")

    def read_crcs(self, file: int, key: str) -> Sequence[int]:
        """Returns the checksums in an open file's head. Does not read the tensors. Raises OSError,
        or UnusablePackedFile if the file has another layout, size or key."""
        size = os.fstat(file).st_size
        if size != self.file_bytes:
            raise UnusablePackedFile(f"it has {size} bytes and not {self.file_bytes}", size)
        head = os.pread(file, self.begin, 0)
        crcs: list[int] = np.frombuffer(head, CHECKSUM, len(self.tensors), CHECKSUMS_FROM).tolist()
        if head != self.head(key, crcs):
            raise UnusablePackedFile("its head is damaged, or of other weights or another form", 0)
        return crcs


def _aligned(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment
