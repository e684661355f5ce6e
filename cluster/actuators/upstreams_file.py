"""Writes the ready replicas into the file that the proxy reads (UPSTREAMS_FILE)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster.errors import ConfigFaulty
from common.files import write_whole

USUAL_PATH = "/ready"
HEAD = "# Written by the cluster's actuator: changes made here are lost.\n"


@dataclass(frozen=True, slots=True)
class Listed:
    """A replica's entry. An entry without models takes requests for any model. `rows` is for a
    replica that does not report its rows. `server` is for the proxy's routes and records."""

    models: tuple[str, ...] = ()
    health_path: str = USUAL_PATH
    rows: int | None = None
    server: str = ""
    cents_per_hour: float | None = None


class UpstreamsFile:
    """The file, which no one else may write. One thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigFaulty if something else wrote the file."""
        self._path = path
        try:
            self._written = path.read_text(encoding="utf-8") if path.exists() else ""
            self.listed = _upstreams_in(self._written)
        except (OSError, ValueError) as error:
            raise ConfigFaulty(
                f"upstreams_file {path} was not written by this cluster ({error}); "
                "remove it or choose another path."
            ) from error

    def write(self, listed: Mapping[str, Listed]) -> bool:
        """Write the file if its content changes. Returns whether it did. Replaces the file as a
        whole, so that no reader sees half of it."""
        entries = [
            {"url": url}
            | ({"models": list(each.models)} if each.models else {})
            | ({"health_path": each.health_path} if each.health_path != USUAL_PATH else {})
            | ({"rows": each.rows} if each.rows else {})
            | ({"server": each.server} if each.server else {})
            | ({"cents_per_hour": each.cents_per_hour} if each.cents_per_hour else {})
            for url, each in sorted(listed.items())
        ]
        text = HEAD + yaml.safe_dump({"upstreams": entries}, sort_keys=False)
        if text == self._written:
            return False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, text)
        self._written, self.listed = text, dict(listed)
        return True


def _upstreams_in(text: str) -> dict[str, Listed]:
    """Returns the entries of a file. Raises ValueError if `write` cannot have written it."""
    if not text:
        return {}
    if not text.startswith(HEAD):
        raise ValueError("its first line differs")
    try:
        entries = yaml.safe_load(text)["upstreams"]
        return {
            entry["url"]: Listed(
                tuple(entry.get("models", ())),
                entry.get("health_path", USUAL_PATH),
                entry.get("rows"),
                entry.get("server", ""),
                entry.get("cents_per_hour"),
            )
            for entry in entries
        }
    except (yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise ValueError("it has been edited") from error
