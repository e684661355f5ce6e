"""The upstreams that an operator lists, and their YAML file. Immutable."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from common.addresses import BaseUrl
from proxy.files import read_yaml, validated

MAX_ROWS = 65_536


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class UpstreamSpec:
    """An entry of the upstreams file. Without `models` it takes requests for any model. `rows` is
    for a server that does not report its user rows. Routes refer to its `server`. `cents_per_hour`
    is its cost, whether or not it has requests."""

    url: BaseUrl
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    health_path: Annotated[str, Field(pattern="^/[!-~]*$")] = "/ready"
    models: tuple[str, ...] = ()
    rows: Annotated[int, Field(ge=1, le=MAX_ROWS, strict=True)] | None = None
    server: str = ""
    cents_per_hour: Annotated[float, Field(ge=0, le=1e9)] | None = None

    @property
    def netloc(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def base_path(self) -> str:
        return urlsplit(self.url).path.rstrip("/")


def _as_mapping(entry: object) -> object:
    return {"url": entry} if isinstance(entry, str) else entry


_Entries = tuple[Annotated[UpstreamSpec, BeforeValidator(_as_mapping)], ...]


def parse_upstreams(text: str) -> tuple[UpstreamSpec, ...]:
    """Returns the entries of the file, a YAML list of URLs or mappings. Raises ValueError that
    names every faulty entry."""
    document = read_yaml(text)
    entries = document.get("upstreams") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("expected a list under 'upstreams'; it may be empty, as []")
    specs: tuple[UpstreamSpec, ...] = validated(_Entries, entries)
    if len({spec.url for spec in specs}) < len(specs):
        raise ValueError("an upstream is listed twice; raise its weight instead")
    return specs
