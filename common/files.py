"""Reads and writes files within bounds, and atomically: a file is complete or absent, whenever this
process is killed.

A file is written next to its place and moved there. A killed process leaves at most a draft.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ANYBODY = 0o666  # minus the umask, as with open()
OWNER_ALONE = 0o600


def write_whole(
    path: Path, content: str | bytes, mode: int = ANYBODY, *, replaces: bool = True
) -> None:
    """Write content to a file. See `whole_file`. Raises OSError."""
    with whole_file(path, mode, replaces=replaces) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_file(
    path: Path, mode: int = ANYBODY, *, replaces: bool = True, survives_crash: bool = True
) -> Iterator[Path]:
    """Yields the path of an empty draft, which becomes `path` unless the block raises.

    Without `survives_crash` a crash of the machine may leave `path` with any content.

    Raises OSError; FileExistsError if `path` exists and must not be replaced. So only one of
    several processes creates a file, and the others find it.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield draft
        if survives_crash:
            sync(draft)
        if replaces:
            draft.replace(path)
        else:
            os.link(draft, path)
        if survives_crash:
            sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def append_whole(path: Path, content: bytes, mode: int = ANYBODY) -> None:
    """Append to a file, or leave it as it was. One process at a time. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    with open(descriptor, "wb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while content:  # a disk that fills up takes a part, and refuses the rest
                content = content[file.write(content) :]
        except BaseException:
            file.truncate(size)
            raise


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a file, or of a pipe that somebody writes to. Raises OSError, and
    ValueError if it has more bytes, or for a pipe that could be waited for without end."""
    with open(path, "rb", opener=_open_at_once) as file:
        content = file.read(max_bytes + 1)
        if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is a pipe, and nobody writes to it; give a file")
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes} bytes; shorten it")
    return content


def _open_at_once(path: str, flags: int) -> int:
    """Opens a named pipe also while nobody writes to it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def sync(path: Path) -> None:
    """Make content, or the names in a folder, survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
