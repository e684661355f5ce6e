"""A packed file: a model's weights as they are in memory, written once, then mapped."""

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar
from zlib import crc32

import numpy as np

from inference_api.kernels.library import Kernels
from inference_api.kernels.packing import FLOAT_BITS, LAYOUT_VERSION, Bits
from inference_api.loading.config import ModelConfig
from inference_api.loading.layout import weight_plan
from inference_api.loading.packing.layout import PackedLayout, UnusablePackedFile
from inference_api.loading.packing.pages import SLICE_BYTES, Pause, mapped, slices, touch
from inference_api.loading.weights import (
    Memory,
    Packing,
    Parameters,
    empty_parameters,
    load_parameters,
)

Identity = tuple[int, ...]


@dataclass(frozen=True)
class PackedModel:
    """A model for the kernels, and the form of its weights. Others may subclass it."""

    name: str
    files: Sequence[Path]
    config: ModelConfig
    dtype: str  # value of DTYPE
    bits: Bits

    by_torch: ClassVar[bool] = False
    """Whether torch reads the file, in other forms than the kernels."""

    @cached_property
    def layout(self) -> PackedLayout:
        form = (FLOAT_BITS[self.dtype] // 8, self.bits, self.by_torch)
        return PackedLayout.of(self.config, *form)

    @cached_property
    def form(self) -> bytes:
        """Returns everything that decides how the source files are packed, as bytes to hash."""
        config = self.config
        # The order of rows depends on these.
        heads = (config.num_kv_heads, config.num_groups, config.head_dim)
        made_of = (LAYOUT_VERSION, weight_plan(config), heads, config.quantisation)
        return repr((self.by_torch, self.layout.tensors, made_of)).encode()

    def parameters(self, memory: mmap.mmap, packing: Packing) -> Parameters:
        """Returns the parameters as views of a packed file's memory, which they keep alive."""
        return empty_parameters(self.config, self.dtype, packing, self.views(memory))

    def pack_into(self, memory: mmap.mmap, pause: Pause) -> None:
        """Read the model's weights into memory of zeros. Raises StartupError. Uses kernels with one
        thread of its own, because the server's belong to the decode thread."""
        packing = Packing(Kernels(1), self.bits)
        views = self.views(memory)
        load_parameters(self.files, self.config, self.dtype, packing, views, pause)

    def views(self, memory: mmap.mmap) -> Memory:
        """Returns the bytes of each parameter in a file's memory."""
        return {
            each.name: np.frombuffer(memory, np.uint8, each.form.num_bytes, each.begin)
            for each in self.layout.tensors
        }


def write_packed(path: Path, key: str, model: PackedModel, pause: Pause) -> Identity:
    """Pack a model into an empty file through a memory map, so that the process itself holds only
    the tensor being read. Returns the file's identity.

    Raises StartupError, or OSError if the disk has no room. Room is reserved first, because writing
    to a mapped page without disk space kills the process.
    """
    layout = model.layout
    with path.open("w+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, layout.file_bytes)
        memory = mmap.mmap(file.fileno(), layout.file_bytes)
        model.pack_into(memory, pause)
        head = layout.head(key, list(_crcs(layout, memory, pause)))
        memory[: len(head)] = head
        memory.flush()
        os.fsync(file.fileno())
        return _identity(os.fstat(file.fileno()))


def read_packed(
    path: Path, key: str, layout: PackedLayout, checked: set[Identity], pause: Pause
) -> mmap.mmap:
    """Read all of a packed file into memory, and return the map.

    Checksums are compared the first time; then the file's identity is added to `checked`. Raises
    OSError, MemoryError, or UnusablePackedFile if the file does not match `layout`.
    """
    with path.open("rb", buffering=0) as file:
        crcs = layout.read_crcs(file.fileno(), key)
        state = os.fstat(file.fileno())
        memory = mapped(file.fileno(), layout.file_bytes)
    identity = _identity(state)
    if identity not in checked:
        actual = _crcs(layout, memory, pause)
        for each, crc, actual_crc in zip(layout.tensors, crcs, actual, strict=True):
            if crc != actual_crc:
                raise UnusablePackedFile(f"{each.name} does not match its checksum", each.begin)
        checked.add(identity)
    else:
        touch(memory, pause)
    return memory


def _identity(state: os.stat_result) -> Identity:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _crcs(layout: PackedLayout, memory: mmap.mmap, pause: Pause) -> Iterator[int]:
    """Yields the checksum of each tensor, with pauses for other threads."""
    view = memoryview(memory)
    num_bytes = 0  # since the last pause
    for each in layout.tensors:
        crc = 0
        for begin, end in slices(each.begin, each.end):
            crc = crc32(view[begin:end], crc)
            num_bytes += end - begin
            if num_bytes >= SLICE_BYTES:
                num_bytes = 0
                pause()
        yield crc
