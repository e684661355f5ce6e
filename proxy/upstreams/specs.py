"""The upstreams that an operator lists, and their YAML file. Immutable."""

import math
import re
from dataclasses import dataclass, fields
from urllib.parse import urlsplit

from proxy.files import read_yaml

MAX_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class UpstreamSpec:
    """An entry of the upstreams file. Without `models` it takes requests for any model. `rows` is
    for a server that does not report its user rows. Routes refer to its `server`. `cents_per_hour`
    is its cost, whether or not it has requests."""

    url: str
    weight: float = 1.0
    health_path: str = "/ready"
    models: tuple[str, ...] = ()
    rows: int | None = None
    server: str = ""
    cents_per_hour: float | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"url={self.url!r}; expected http(s)://host[:port][/path]")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight={self.weight} of {self.url}; expected a number above 0")
        if self.rows is not None and not 1 <= self.rows <= MAX_ROWS:
            raise ValueError(f"rows={self.rows} of {self.url}; expected 1 to {MAX_ROWS}")
        if not 0 <= (self.cents_per_hour or 0.0) <= 1e9:
            raise ValueError(
                f"cents_per_hour={self.cents_per_hour} of {self.url}; expected 0 to 1e9"
            )
        if not re.fullmatch("/[!-~]*", self.health_path):
            raise ValueError(
                f"health_path={self.health_path!r} of {self.url}; must begin with / and have "
                "neither spaces nor letters beyond ASCII"
            )

    @property
    def netloc(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def base_path(self) -> str:
        return urlsplit(self.url).path.rstrip("/")


def parse_upstreams(text: str) -> tuple[UpstreamSpec, ...]:
    """Returns the entries of the file, a YAML list of URLs or mappings. Raises ValueError that
    names the faulty entry."""
    document = read_yaml(text)
    entries = document.get("upstreams") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("expected a list under 'upstreams'; it may be empty, as []")
    specs = tuple(_parse_entry(entry) for entry in entries)
    if len({spec.url for spec in specs}) < len(specs):
        raise ValueError("an upstream is listed twice; raise its weight instead")
    return specs


def _parse_entry(entry: object) -> UpstreamSpec:
    if isinstance(entry, str):
        return UpstreamSpec(entry)
    if not isinstance(entry, dict) or "url" not in entry:
        raise ValueError(f"upstream {entry!r} has no url")
    if unknown := set(entry) - {each.name for each in fields(UpstreamSpec)}:
        raise ValueError(f"upstream {entry['url']}: unknown keys {sorted(map(str, unknown))}")
    models = entry.get("models", ())
    if not isinstance(models, (list, tuple)):
        raise ValueError(f"upstream {entry['url']}: models must be a list")
    rows = entry.get("rows")
    if rows is not None and type(rows) is not int:
        raise ValueError(f"upstream {entry['url']}: rows must be a whole number")
    try:
        weight = float(entry.get("weight", 1.0))
        cents_per_hour = entry.get("cents_per_hour")
        cents_per_hour = None if cents_per_hour is None else float(cents_per_hour)
    except (TypeError, ValueError):
        raise ValueError(f"upstream {entry['url']}: weight, cents_per_hour: no number") from None
    return UpstreamSpec(
        url=str(entry["url"]),
        weight=weight,
        health_path=str(entry.get("health_path", "/ready")),
        models=tuple(map(str, models)),
        rows=rows,
        server=str(entry.get("server", "")),
        cents_per_hour=cents_per_hour,
    )
