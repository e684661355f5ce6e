"""One line of JSON per cycle, in files of bounded size. Controller thread only."""

import json
import os
from pathlib import Path
from typing import Any

KEPT = 3  # old files: .1 is the youngest


class Journal:
    def __init__(self, path: Path, max_bytes: int) -> None:
        """Raises OSError if the file cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._max_bytes = path, max_bytes
        with path.open("a"):
            pass

    def write(self, entry: dict[str, Any]) -> None:
        """Writes a complete line or nothing. Raises OSError."""
        line = json.dumps(entry, separators=(",", ":"), default=str).encode() + b"\n"
        if self._size() and self._size() + len(line) > self._max_bytes:
            self._rotate()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        with open(descriptor, "wb", buffering=0) as stream:
            if stream.write(line) != len(line):
                raise OSError(f"{self._path}: only part of a line was written; is the disk full?")

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _rotate(self) -> None:
        paths = [self._path, *(Path(f"{self._path}.{n}") for n in range(1, KEPT + 1))]
        for older, newer in zip(reversed(paths), list(reversed(paths))[1:], strict=False):
            if newer.exists():
                newer.replace(older)
