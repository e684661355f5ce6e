"""Writes one line of JSON per cycle to files of bounded size. Controller thread only."""

import json
import logging
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.files import append_whole

log = logging.getLogger(__name__)

KEPT = 3  # old files: .1 is the youngest
READ_BACK_BYTES = 32 * 1024 * 1024


class Journal:
    def __init__(self, path: Path, max_bytes: int) -> None:
        """Puts a file aside that ends within a line. Raises OSError if the file is unusable."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._paths = [path, *(Path(f"{path}.{n}") for n in range(1, KEPT + 1))]
        self._path, self._max_bytes = path, max_bytes
        with path.open("ab+") as stream:
            stream.seek(-min(stream.tell(), 1), os.SEEK_END)
            is_whole = stream.read(1) in (b"", b"\n")
        if not is_whole:  # the next line would be appended to the broken one and be lost
            log.warning("%s ends within a line, and is %s now", path, self._paths[1])
            self._rotate()

    def write(self, entry: dict[str, Any]) -> None:
        """Writes a complete line or nothing. Raises OSError."""
        line = json.dumps(entry, separators=(",", ":"), default=str).encode() + b"\n"
        if self._size() and self._size() + len(line) > self._max_bytes:
            self._rotate()
        append_whole(self._path, line, 0o640)

    def read_back(self, num_bytes: int = READ_BACK_BYTES) -> list[bytes]:
        """Returns the lines in the last `num_bytes`, oldest first; the first may lack its
        beginning. Skips unreadable files, because a controller can do without."""
        lines: list[bytes] = []
        try:
            for path in self._paths:
                if num_bytes <= 0 or not path.exists():
                    break
                with path.open("rb") as stream:
                    size = stream.seek(0, os.SEEK_END)
                    stream.seek(max(0, size - num_bytes))
                    lines = stream.read(min(size, num_bytes)).splitlines() + lines
                num_bytes -= size
        except OSError as error:
            log.warning("the journal is not read back: %s", error)
        return lines

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _rotate(self) -> None:
        for newer, older in reversed([*pairwise(self._paths)]):
            if newer.exists():
                newer.replace(older)
