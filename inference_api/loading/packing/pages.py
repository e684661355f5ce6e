"""Memory maps, of a file or anonymous. The system gets the memory back as soon as the last view is
dropped, which is not so with the allocator's memory."""

import errno
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

# Linux's MAP_NORESERVE, which Python names from 3.13 on: pages that are never written do not count.
NO_RESERVE = 0x4000
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
SLICE_BYTES = 16 * 1024**2  # read into memory between two pauses
Pause = Callable[[], None]


def anonymous(num_bytes: int, advice: int | None = None) -> mmap.mmap:
    """Returns zeros, whose pages take memory only when they are written. Raises MemoryError."""
    with _memory_errors():
        memory = mmap.mmap(-1, num_bytes, flags=ANONYMOUS)
    if advice is not None:
        advise(memory, advice)
    return memory


def advise(memory: mmap.mmap, advice: int) -> None:
    """Give the system advice of madvise(2) about huge pages. Ignored by kernels without them."""
    with suppress(OSError):
        memory.madvise(advice)


def mapped(file: int, num_bytes: int) -> mmap.mmap:
    """Returns a read-only map of an open file's first bytes. The system may drop its pages. The
    file must not become shorter: see `touch`. Raises MemoryError."""
    with _memory_errors():
        return mmap.mmap(file, num_bytes, access=mmap.ACCESS_READ)


def touch(memory: mmap.mmap, pause: Pause) -> None:
    """Read every page of a mapped file into memory, so that no step waits for the disk. Pauses for
    other threads. If the file has become shorter, the process dies here, or later."""
    pages = np.frombuffer(memory, np.uint8)
    for begin, end in slices(0, len(pages)):
        pages[begin : end : mmap.PAGESIZE].max()
        pause()


def slices(begin: int, end: int) -> Iterator[tuple[int, int]]:
    for at in range(begin, end, SLICE_BYTES):
        yield at, min(at + SLICE_BYTES, end)


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(str(error)) from error
