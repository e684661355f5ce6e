"""Ends a process with its parent."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None)  # not first loaded between a fork and an exec


def end_with_parent(number: signal.Signals = signal.SIGTERM, parent: int | None = None) -> None:
    """Have Linux send this process a signal when its parent ends, for any reason; also once it runs
    another program. Exits if the parent, whose id may be given, has ended already."""
    if sys.platform == "linux":
        _LIBC.prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        sys.exit("The parent process has ended.")
