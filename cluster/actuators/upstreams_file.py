"""Writes the file that the proxy follows (UPSTREAMS_FILE): the replicas that are ready."""

import os
from collections.abc import Iterable
from pathlib import Path

import yaml

HEAD = "# Written by the cluster's actuator: changes made here are lost.\n"


class UpstreamsFile:
    """One thread at a time. Nobody else writes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.urls = _urls_in(path)

    def write(self, urls: Iterable[str]) -> bool:
        """Whether the file had to change. It is replaced whole, so that nobody reads half of it."""
        wanted = tuple(sorted(urls))
        if wanted == self.urls and self._path.exists():
            return False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        draft.write_text(HEAD + yaml.safe_dump({"upstreams": list(wanted)}), encoding="utf-8")
        draft.replace(self._path)
        self.urls = wanted
        return True


def _urls_in(path: Path) -> tuple[str, ...]:
    """What an earlier run wrote; none where there is nothing of the kind."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return ()
    entries = document.get("upstreams") if isinstance(document, dict) else None
    return tuple(e for e in entries if isinstance(e, str)) if isinstance(entries, list) else ()
