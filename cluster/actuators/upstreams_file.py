"""Writes the file that the proxy follows (UPSTREAMS_FILE): the replicas that are ready."""

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
    """A replica's entry. One without models takes requests for any."""

    models: tuple[str, ...] = ()
    health_path: str = USUAL_PATH
    rows: int | None = None
    """Where the replica itself does not say."""
    server: str = ""
    """Its name in the proxy's routes and records."""
    cents_per_hour: float | None = None


class UpstreamsFile:
    """One thread at a time. Nobody else writes the file."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigFaulty if somebody else wrote the file."""
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
        """Returns whether the file had to change.

        The file is replaced as a whole, so that nobody reads half of it.
        """
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
    """Raises ValueError if `write` cannot have written this."""
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
