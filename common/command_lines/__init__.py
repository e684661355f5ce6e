"""What command lines have in common: the extras they need, and a standard output that may fail."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # it is of a file that could not be opened
            raise
        # Or Python would try again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1 if isinstance(error, BrokenPipeError) else f"error: {error}")
