"""SHA-256 of files of weights, kept for as long as the files stay as they are."""

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from common.files import write_whole
from inference_api.errors import StartupError

SUFFIX = ".source"  # ends the name of a file that keeps a hash; the stamp comes before it
SLICE_BYTES = 16 * 1024**2
STAMPED_BYTES = 1024**2  # at the beginning of a file, where its header is
SETTLED_NS = 2 * 10**9  # a change after this has another time, however coarse the clock is
HASH = re.compile(r"[0-9a-f]{64}")


class SourceHashes:
    """Any thread, any process. A file's stamp is its inode, size, time and beginning."""

    def __init__(self, folder: Path, pause: Callable[[], None]) -> None:
        """`pause`: called between slices of files that are hashed."""
        self._folder = folder
        self._pause = pause
        self._stamps: dict[tuple[int, ...], str] = {}  # only unchanging files'

    def known(self, file: Path) -> str | None:
        """Returns the hash if the file was hashed as it is now. Raises StartupError."""
        try:
            found = (self._folder / (self._stamp(file) + SUFFIX)).read_text()
        except OSError:
            return None
        return found if HASH.fullmatch(found) else None

    def of(self, file: Path) -> str:
        """Raises StartupError when the file cannot be read, or changes meanwhile; OSError when the
        hash cannot be kept."""
        known = self.known(file)
        if known is not None:
            return known
        stamp = self._stamp(file)
        digest = hashlib.sha256()
        with file.open("rb", buffering=0) as stream:
            while part := stream.read(SLICE_BYTES):
                digest.update(part)
                self._pause()
        if self._stamp(file) != stamp:
            raise StartupError([f"{file} changes while it is read; load it when it is complete."])
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
            raise StartupError([f"{file} cannot be read ({error}); get it again."]) from None
        stamp = f"{state.st_ino} {state.st_size} {state.st_mtime_ns} {beginning}"
        stamp = hashlib.sha256(stamp.encode()).hexdigest()
        if time.time_ns() - state.st_ctime_ns > SETTLED_NS:
            self._stamps[written] = stamp
        return stamp
