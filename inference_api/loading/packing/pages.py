"""Memory by pages: a file's, or without one.

It is given back at once when the last view of it is dropped, whatever the allocator keeps.
"""

import errno
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

# Linux's MAP_NORESERVE, which Python 3.13 names: what is never written counts for nothing.
NO_RESERVE = 0x4000
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
SLICE_BYTES = 16 * 1024**2  # brought into memory between two pauses
Pause = Callable[[], None]


def anonymous(num_bytes: int, advice: int | None = None) -> mmap.mmap:
    """Returns zeros that take memory page by page, as they are written. Raises MemoryError."""
    with _memory_errors():
        memory = mmap.mmap(-1, num_bytes, flags=ANONYMOUS)
    if advice is not None:
        advise(memory, advice)
    return memory


def advise(memory: mmap.mmap, advice: int) -> None:
    """`advice`: of madvise(2), about huge pages; a kernel without any does not follow it."""
    with suppress(OSError):
        memory.madvise(advice)


def mapped(file: int, num_bytes: int) -> mmap.mmap:
    """Returns the first bytes of an open file; they take memory that the system can have back.

    They are read-only. The file has to keep its length: see `touch`. Raises MemoryError.
    """
    with _memory_errors():
        return mmap.mmap(file, num_bytes, access=mmap.ACCESS_READ)


def touch(memory: mmap.mmap, pause: Pause) -> None:
    """Bring every page of a mapped file into memory, so that no step waits for the disk.

    Other threads run meanwhile. A file that is cut short ends the process here, or later.
    """
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
