"""Writes the ready replicas into the file that the proxy reads (UPSTREAMS_FILE)."""

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from cluster.errors import ConfigFaulty
from common.files import write_whole

HEAD = "# Written by the cluster's actuator: changes made here are lost.\n"


class Listed(BaseModel):
    """A replica's entry. An entry without models takes requests for any model. `rows` is for a
    replica that does not report its rows. `server` is for the proxy's routes and records."""

    model_config = ConfigDict(frozen=True)

    url: str
    models: tuple[str, ...] = ()
    health_path: str = "/ready"
    rows: int | None = None
    server: str = ""
    cents_per_hour: float | None = None


_LISTED = TypeAdapter(tuple[Listed, ...])


class UpstreamsFile:
    """The file, which no one else may write. `listed` are its entries. One thread at a time."""

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

    def write(self, listed: Iterable[Listed]) -> bool:
        """Write the file if its content changes. Returns whether it did. Replaces the file as a
        whole, so that no reader sees half of it."""
        sorted_by_url = tuple(sorted(listed, key=attrgetter("url")))
        entries = _LISTED.dump_python(sorted_by_url, mode="json", exclude_defaults=True)
        text = HEAD + yaml.safe_dump({"upstreams": entries}, sort_keys=False)
        if text == self._written:
            return False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, text)
        self._written, self.listed = text, sorted_by_url
        return True


def _upstreams_in(text: str) -> tuple[Listed, ...]:
    """Returns the entries of a file. Raises ValueError if `write` cannot have written it."""
    if not text:
        return ()
    if not text.startswith(HEAD):
        raise ValueError("its first line differs")
    try:
        return _LISTED.validate_python(yaml.safe_load(text)["upstreams"])
    except (yaml.YAMLError, LookupError, TypeError, ValidationError) as error:
        raise ValueError("it has been edited") from error
