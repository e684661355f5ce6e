"""Origins of web pages, as CORS_ORIGINS lists them, and names of hosts, as ALLOWED_HOSTS does."""

import re
from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

ANY = "*"
LOCAL = "local"  # pages that a program on the browser's own machine shows
# As browsers send it: in lower case, without a path.
ORIGIN = re.compile(r"\*|local|none|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")
_OF_LOCAL = re.compile(r"http://(localhost|127\.0\.0\.1)(:[0-9]{1,5})?")
HOST = re.compile(r"\*|[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def split_at_commas(value: object) -> object:
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


def _check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    for host in hosts:
        if not HOST.fullmatch(host):
            raise ValueError(f"'{host}' is no name of a host in lower case, without a port")
    return hosts


Hosts = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(split_at_commas), AfterValidator(_check_hosts)
]
"""A setting: names, separated by commas; `*` for any."""


def is_allowed(origin: str | None, allowed: Collection[str]) -> bool:
    if origin is None or ANY in allowed or origin in allowed:
        return origin is not None
    return LOCAL in allowed and _OF_LOCAL.fullmatch(origin) is not None
