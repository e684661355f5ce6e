"""Reads files that may change while the proxy runs: policy, upstreams, revoked tokens, key sets."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from common.faults import fault_of
from common.files import read_bounded
from common.plain_yaml import plain_value

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[int, int, int]
MAX_NODES = 2**18  # keys and values of a file: some 20,000 teams
MAX_BYTES = 2**26
read_yaml = partial(plain_value, max_nodes=MAX_NODES)


class Entry(BaseModel):
    """Base class of mappings in a file. Immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WatchedFile(Generic[T]):
    """A parsed file. `refresh` reads it again if it has changed.

    Any thread may read `value`, which is replaced whole, and one at a time call `refresh`. A file
    that no longer parses is logged once per change, and the last good value stays, so that a typing
    error in a policy does not stop a running service.
    """

    def __init__(self, path: Path, parse: Callable[[str], T]) -> None:
        """Raises ValueError or OSError if the first reading fails."""
        self._path = path
        self._parse = parse
        self._stamp = self._read_stamp()
        self.value = parse(read_bounded(path, MAX_BYTES).decode())

    def refresh(self) -> bool:
        """Read the file if it has changed. Returns whether there is a new value."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            self.value = self._parse(read_bounded(self._path, MAX_BYTES).decode())
        except (OSError, ValueError) as error:
            log.error("%s cannot be read, its last good value stays: %s", self._path, error)
            return False
        log.info("%s reloaded", self._path)
        return True

    def _read_stamp(self) -> Stamp:
        # The inode, too, because a file replaced by rename may keep size and time.
        status = os.stat(self._path)
        return status.st_mtime_ns, status.st_size, status.st_ino


def opened(
    path: Path | None, parse: Callable[[str], T], faults: list[str]
) -> WatchedFile[T] | None:
    """Returns the file; None without a configured path, or after adding to `faults`."""
    if path is not None:
        try:
            return WatchedFile(path, parse)
        except (OSError, ValueError) as error:
            faults.append(f"{path}: {error}")
    return None


def validated(kind: type[T], document: object) -> T:
    """Returns a file's content as that type. Raises ValueError that names every faulty entry."""
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        faults = (fault_of(each, kind, "the file") for each in error.errors())
        raise ValueError(" ".join(faults)) from error
