"""Writes the file that the proxy follows (UPSTREAMS_FILE): the replicas that are ready."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from cluster.errors import ConfigFaulty
from common.files import write_whole

HEAD = "# Written by the cluster's actuator: changes made here are lost.\n"


class UpstreamsFile:
    """One thread at a time. Nobody else writes the file."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigFaulty if somebody else wrote the file."""
        self._path = path
        try:
            self._written = path.read_text(encoding="utf-8") if path.exists() else ""
            self.models_by_url = _upstreams_in(self._written)
        except (OSError, ValueError) as error:
            raise ConfigFaulty(
                f"upstreams_file {path} was not written by this cluster ({error}); "
                "remove it or choose another path."
            ) from error

    def write(self, models_by_url: Mapping[str, tuple[str, ...]]) -> bool:
        """Returns whether the file had to change. A replica without models takes requests for any.

        The file is replaced as a whole, so that nobody reads half of it.
        """
        entries = [
            {"url": url} | ({"models": list(models)} if models else {})
            for url, models in sorted(models_by_url.items())
        ]
        text = HEAD + yaml.safe_dump({"upstreams": entries}, sort_keys=False)
        if text == self._written:
            return False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, text)
        self._written, self.models_by_url = text, dict(models_by_url)
        return True


def _upstreams_in(text: str) -> dict[str, tuple[str, ...]]:
    """Raises ValueError if `write` cannot have written this."""
    if not text:
        return {}
    if not text.startswith(HEAD):
        raise ValueError("its first line differs")
    try:
        entries = yaml.safe_load(text)["upstreams"]
        return {entry["url"]: tuple(entry.get("models", ())) for entry in entries}
    except (yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise ValueError("it has been edited") from error
