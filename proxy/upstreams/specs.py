"""The list of upstreams: its entries, its YAML file, and its sources, which may change it while the
proxy serves; and the file of API keys for upstreams of other providers."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from common.addresses import BaseUrl
from proxy.files import WatchedFile, read_yaml, validated

MAX_ROWS = 65_536
# Keyed by the upstream's URL: the name of the header with the key, and its value.
UpstreamKeys = Mapping[str, tuple[str, str]]

_URL = re.compile(r"https?://[^\s?#]+")
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_VALUE = re.compile(r"[!-~]{1,4096}")


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


Specs = tuple[UpstreamSpec, ...]


def _as_mapping(entry: object) -> object:
    return {"url": entry} if isinstance(entry, str) else entry


_Entries = tuple[Annotated[UpstreamSpec, BeforeValidator(_as_mapping)], ...]


def parse_upstreams(text: str) -> Specs:
    """Returns the entries of the file, a YAML list of URLs or mappings. Raises ValueError that
    names every faulty entry."""
    document = read_yaml(text)
    entries = document.get("upstreams") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("expected a list under 'upstreams'; it may be empty, as []")
    specs: Specs = validated(_Entries, entries)
    if len({spec.url for spec in specs}) < len(specs):
        raise ValueError("an upstream is listed twice; raise its weight instead")
    return specs


class Discovery:
    """A source of replicas; by itself, of the given ones forever. A replica that leaves the list
    gets no new requests; its running requests continue to their end. Any thread may read
    `current`, which is replaced whole."""

    def __init__(self, *specs: UpstreamSpec) -> None:
        self.current: Specs = specs
        self._on_change: Callable[[], object] = lambda: None

    @property
    def is_stale(self) -> bool:
        """Whether the list may be out of date, because its source cannot be reached."""
        return False

    def start(self, on_change: Callable[[], object]) -> None:
        """Start in the serving process. `on_change` is called, on any thread, when there is a new
        list."""
        self._on_change = on_change

    def refresh(self) -> None:
        """Look for changes. May block; one thread at a time."""

    def stop(self) -> None:
        """End what `start` began."""


class ReplicasFile(Discovery):
    """The replicas in a file, which is followed. A mistake in the file is logged."""

    def __init__(self, file: WatchedFile[Specs]) -> None:
        super().__init__(*file.value)
        self._file = file

    def refresh(self) -> None:
        if self._file.refresh():
            self.current = self._file.value
            self._on_change()


def parse_keys(text: str) -> UpstreamKeys:
    """Returns a file's keys, which are in no answer or log:

        https://api.openai.com: sk-...
        https://api.anthropic.com: {x-api-key: sk-ant-...}

    Raises ValueError that says where a mistake is, without quoting it."""
    try:
        entries = read_yaml(text) or {}
    except ValueError as error:
        where = re.search(r"line \d+", str(error))
        line = "" if where is None else f", {where[0]}"
        raise ValueError(f"no plain YAML in which each key is once{line}") from None
    if not isinstance(entries, dict):
        raise ValueError("expected a mapping of upstreams' URLs to their keys")
    return dict(_entry(number, *item) for number, item in enumerate(entries.items(), 1))


def _entry(number: int, url: object, key: object) -> tuple[str, tuple[str, str]]:
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise ValueError(f"entry {number}: expected http(s)://host[:port][/path] and its key")
    header, value = ("Authorization", key)
    if isinstance(key, dict) and len(key) == 1:
        header, value = next(iter(key.items()))
    if not isinstance(header, str) or not _NAME.fullmatch(header):
        raise ValueError(f"entry {number}: the key's header must be a name, such as x-api-key")
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise ValueError(
            f"entry {number}: expected a key of up to 4096 printable characters, or {{header: key}}"
        )
    return url.rstrip("/"), (header, f"Bearer {value}" if value is key else value)
