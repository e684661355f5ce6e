"""SHA-256 of weight files, stored until the files change."""

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from common.files import write_whole
from inference_api.errors import StartupError

SUFFIX = ".source"  # ends the name of a file that stores a hash; its name is the stamp
SLICE_BYTES = 16 * 1024**2
STAMPED_BYTES = 1024**2  # bytes of a file's beginning, with its header, in the stamp
SETTLED_NS = 2 * 10**9  # a file unchanged for so long gets another time when it changes
HASH = re.compile(r"[0-9a-f]{64}")


class SourceHashes:
    """Hashes by files' stamps. A stamp covers a file's inode, size, time and beginning. Any thread
    of any process."""

    def __init__(self, folder: Path, pause: Callable[[], None]) -> None:
        """`pause` is called between slices of a file that is hashed."""
        self._folder = folder
        self._pause = pause
        self._stamps: dict[tuple[int, ...], str] = {}  # settled files only

    def known_hash(self, file: Path) -> str | None:
        """Returns the hash if the file was hashed in its present state. Raises StartupError."""
        try:
            text = (self._folder / (self._stamp(file) + SUFFIX)).read_text("ascii", "replace")
        except OSError:
            return None
        return text if HASH.fullmatch(text) else None

    def file_hash(self, file: Path) -> str:
        """Returns the hash. Raises StartupError if the file cannot be read or changes meanwhile,
        and OSError if the hash cannot be stored."""
        stored = self.known_hash(file)
        if stored is not None:
            return stored
        stamp = self._stamp(file)
        digest = hashlib.sha256()
        with file.open("rb", buffering=0) as stream:
            while part := stream.read(SLICE_BYTES):
                digest.update(part)
                self._pause()
        if self._stamp(file) != stamp:
            raise StartupError(f"{file} changes while it is read; load it when it is complete.")
        write_whole(self._folder / (stamp + SUFFIX), digest.hexdigest())
        return digest.hexdigest()

    def _stamp(self, file: Path) -> str:
        try:
            with file.open("rb", buffering=0) as stream:
                state = os.fstat(stream.fileno())
                written = (state.st_dev, state.st_ino, state.st_size, state.st_ctime_ns)
                if written in self._stamps:
                    return self._stamps[written]
                beginning = hashlib.sha256(stream.read(STAMPED_BYTES)).hexdigest()
        except OSError as error:
            raise StartupError(f"{file} cannot be read ({error}); get it again.") from None
        stamp = f"{state.st_ino} {state.st_size} {state.st_mtime_ns} {beginning}"
        stamp = hashlib.sha256(stamp.encode()).hexdigest()
        if time.time_ns() - state.st_ctime_ns > SETTLED_NS:
            self._stamps[written] = stamp
        return stamp
