"""Parses addresses as people write them in settings, files and commands: URLs of servers, origins
of web pages (CORS_ORIGINS) and host names (ALLOWED_HOSTS). Any thread."""

import re
from collections.abc import Collection, Sequence
from typing import Annotated, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

ANY = "*"
LOCAL = "local"  # pages from a program on the browser's own machine
# Browsers send origins in lower case, without a path.
ORIGIN = re.compile(r"\*|local|none|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")
_OF_LOCAL = re.compile(r"http://(localhost|127\.0\.0\.1)(:[0-9]{1,5})?")
# What stands for `/v1/` in paths as Azure's clients write them, unless they name a deployment.
OF_AZURE = re.compile(r"\A/openai/(?:v1/|(?=responses\b))")
HTTP_SCHEMES = ("http", "https")
REDIS_SCHEMES = ("redis", "rediss", "unix")
UrlT = TypeVar("UrlT", str, SecretStr)
HOST = re.compile(r"\*|[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def _split(value: object) -> object:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _origin(text: str) -> str:
    if not ORIGIN.fullmatch(text):
        raise ValueError(
            f"{text!r} is no origin, which is scheme://host[:port] in lower case, and neither "
            "local, none nor *"
        )
    return text


def _host_name(text: str) -> str:
    if not HOST.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a host; give one in lower case, without a port")
    return text


def _parts(url: str, schemes: Sequence[str]) -> SplitResult | None:
    """Returns the parts of a URL; None if its scheme is none of these, or its port is invalid."""
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in schemes and parts.port != 0 else None
    except ValueError:
        return None


def http_parts(url: str) -> SplitResult:
    """Returns the parts of an address with scheme and host. Raises ValueError, which does not quote
    the address, because it may hold a password."""
    parts = _parts(url, HTTP_SCHEMES)
    if parts is None or not parts.hostname or url.split() != [url]:
        raise ValueError("is no address; give one like http://127.0.0.1:7000")
    return parts


def _base(url: str) -> str:
    parts = http_parts(url)
    if parts.query or parts.fragment:
        raise ValueError("has a query or a fragment; leave it out")
    return url.rstrip("/")


def _check_redis(url: UrlT) -> UrlT:
    """Returns the URL. Raises ValueError, as `http_parts` does."""
    text = url if isinstance(url, str) else url.get_secret_value()
    if text and _parts(text, REDIS_SCHEMES) is None:
        raise ValueError("is no address of a Redis server; give one like redis://127.0.0.1:6379/0")
    return url


HttpUrl = Annotated[str, AfterValidator(lambda url: http_parts(url) and url)]
BaseUrl = Annotated[str, AfterValidator(_base)]  # paths are appended to it
REDIS = AfterValidator(_check_redis)
# Settings with several names in one variable.
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
HostName = Annotated[str, Field(max_length=255), AfterValidator(_host_name)]
Hosts = Annotated[Words, AfterValidator(lambda names: tuple(map(_host_name, names)))]
Origins = Annotated[Words, AfterValidator(lambda names: tuple(map(_origin, names)))]


def is_allowed(origin: str | None, allowed: Collection[str]) -> bool:
    if origin is None or ANY in allowed or origin in allowed:
        return origin is not None
    return LOCAL in allowed and _OF_LOCAL.fullmatch(origin) is not None
