"""Headers that pass through the proxy, and those it sets itself. Pure functions."""

import re
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from proxy.access.auth import Principal
from proxy.clients.request_head import RequestHead
from proxy.errors import Headers, UpstreamBroken

# RFC 9110, section 7.6.1, which every hop writes for itself.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The proxy sets identity and origin; a client may not. `Expect` was answered here. The proxy reads
# answers as they pass, so they may not be encoded. It has judged what browsers say of their pages.
# Cookies are its own, or belong to other services on this host.
NEVER_FORWARDED = HOP_BY_HOP | {
    "accept-encoding",
    "access-control-request-headers",
    "access-control-request-method",
    "api-key",
    "authorization",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "origin",
    "x-api-key",
    "x-real-ip",
    "x-request-id",
    "x-team-id",
    "x-token-id",
}
DROPPED_PREFIXES = ("sec-fetch-", "x-forwarded-")
# What an upstream may not tell a browser: whose pages read us, and what cookies to keep.
NEVER_RETURNED = HOP_BY_HOP | {"date", "server", "set-cookie"}
LOCATIONS = frozenset({"content-location", "location", "refresh"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(?i)(https?:)?//[^\s;,'\"]*")


class Identity(NamedTuple):
    """The caller and id of a request, for the headers that tell the upstream."""

    principal: Principal
    request_id: str


def upstream_headers(head: RequestHead, identity: Identity) -> Headers:
    """The client's end-to-end headers, then ours. Host and framing are the caller's."""
    nominated = _nominated(head.get("connection", ""))
    headers = [
        (name, value)
        for name, value in head.fields.items()
        if name not in NEVER_FORWARDED
        and name not in nominated
        and not name.startswith(DROPPED_PREFIXES)
    ]
    return [
        *headers,
        ("Accept-Encoding", "identity"),
        ("X-Team-Id", identity.principal.team_id),
        ("X-Token-Id", identity.principal.token_id),
        ("X-Request-Id", identity.request_id),
        ("X-Forwarded-For", head.peer),
        ("X-Forwarded-Proto", head.scheme),
        ("X-Forwarded-Host", head.get("host", "")),
    ]


def client_headers(
    received: Headers, ours: Headers, is_chunked: bool, upstream_url: str
) -> Headers:
    """The upstream's end-to-end headers, with `ours` in place of any of the same name.

    Redirects to the upstream's own address become paths, which lead back here. Raises
    UpstreamBroken for framing that the client could read in another way than we do; the rest of
    what HTTP does not allow is refused where the answer is read.
    """
    dropped = {name.lower() for name, _ in ours}
    passed = []
    for name, value in received:
        key = name.lower()
        if key == "connection":
            dropped |= _nominated(value)
        elif key == "transfer-encoding" and not is_chunked:
            raise UpstreamBroken("an unknown Transfer-Encoding")
        elif key in LOCATIONS:
            passed.append((name, without_address(value, upstream_url)))
        elif key not in NEVER_RETURNED and not key.startswith("access-control-"):
            passed.append((name, value))
    return [(name, value) for name, value in passed if name.lower() not in dropped] + ours


def without_address(value: str, upstream_url: str) -> str:
    """A header's URL without the upstream's address, which is nobody's business outside."""

    def shorten(url: re.Match[str]) -> str:
        try:
            if _address(url[0], upstream_url) != _address(upstream_url, upstream_url):
                return url[0]
        except ValueError:  # a port that is no number: not the upstream's either
            return url[0]
        _, _, path, query, fragment = urlsplit(url[0])
        path = path.removeprefix(urlsplit(upstream_url).path.rstrip("/"))
        # Two slashes in front would make another host of what follows.
        return urlunsplit(("", "", "/" + path.lstrip("/\\"), query, fragment))

    return _URL.sub(shorten, value)


def _address(url: str, base_url: str) -> tuple[str | None, int | None]:
    """Host and port, each as good as the other when the host's port is the scheme's own."""
    parts = urlsplit(url, scheme=urlsplit(base_url).scheme)
    return parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)


def _nominated(connection: str) -> frozenset[str]:
    """The fields a Connection header declares to be for this hop only."""
    if not connection:
        return frozenset()
    return frozenset(name.strip().lower() for name in connection.split(",") if name.strip())
