"""Parses origins of web pages (CORS_ORIGINS), names of hosts (ALLOWED_HOSTS) and the address of a
Redis server (REDIS_URL)."""

import re
from collections.abc import Collection
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_settings import NoDecode

ANY = "*"
LOCAL = "local"  # pages from a program on the browser's own machine
# Browsers send origins in lower case, without a path.
ORIGIN = re.compile(r"\*|local|none|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")
_OF_LOCAL = re.compile(r"http://(localhost|127\.0\.0\.1)(:[0-9]{1,5})?")
REDIS_SCHEMES = ("redis", "rediss", "unix")
UrlT = TypeVar("UrlT", str, SecretStr)
HOST = re.compile(r"\*|[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def _split(value: object) -> object:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is no origin, which is scheme://host[:port] in lower case, and "
                "neither local, none nor *"
            )
    return origins


def _check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    for host in hosts:
        if not HOST.fullmatch(host):
            raise ValueError(f"{host!r} is no name of a host in lower case, without a port")
    return hosts


def _check_redis(url: UrlT) -> UrlT:
    """Raises ValueError, which says nothing of the URL: it may hold a password."""
    text = url if isinstance(url, str) else url.get_secret_value()
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in REDIS_SCHEMES and parts.port != 0
    except ValueError:
        is_one = False
    if text and not is_one:
        raise ValueError("is no address of a Redis server; give one like redis://127.0.0.1:6379/0")
    return url


REDIS = AfterValidator(_check_redis)
# Settings with several names in one variable.
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Hosts = Annotated[Words, AfterValidator(_check_hosts)]
Origins = Annotated[Words, AfterValidator(_check_origins)]


def is_allowed(origin: str | None, allowed: Collection[str]) -> bool:
    if origin is None or ANY in allowed or origin in allowed:
        return origin is not None
    return LOCAL in allowed and _OF_LOCAL.fullmatch(origin) is not None
