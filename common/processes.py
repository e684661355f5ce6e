"""Ends processes well: with their parent, without an extra that they need, without an output."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None)  # not first loaded between a fork and an exec


def end_with_parent(number: signal.Signals = signal.SIGTERM, parent: int | None = None) -> None:
    """Have Linux send this process a signal when its parent ends, for any reason; also once it runs
    another program. Exits if the parent, whose id may be given, has ended already."""
    if sys.platform == "linux":
        _LIBC.prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        sys.exit("The parent process has ended.")


def install_line(extra: str) -> str:
    return f"pip install 'hearth[{extra}]', or in a clone: pip install --editable '.[{extra}]'"


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Ends the process with one line if the block imports what only an extra installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed: {install_line(extra)}")


@contextmanager
def printing() -> Iterator[None]:
    """Ends the process if its output cannot be written: with one line, as on a full disk, or
    without, as behind `| head`, where nobody reads on."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # None: it was closed before the start
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # it is of a file that could not be opened
            raise
        # Or Python would try again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1 if isinstance(error, BrokenPipeError) else f"error: {error}")
