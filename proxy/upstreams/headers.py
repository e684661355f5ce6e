"""Headers that pass through the proxy, and those it sets itself. Pure functions."""

import re
from urllib.parse import urlsplit, urlunsplit

from proxy.clients.inbound import InboundRequest
from proxy.errors import Headers, UpstreamBroken

# Fields that every hop writes for itself (RFC 9110, section 7.6.1).
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
# The proxy itself sets identity and origin, has answered `Expect`, and has checked what browsers
# say about their pages. It reads answers as they pass, so they must not be compressed. Cookies are
# its own, or belong to other services on this host.
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
# An upstream may not tell a browser which cookies to keep, nor which pages may read its answers.
NEVER_RETURNED = HOP_BY_HOP | {"date", "server", "set-cookie"}
LOCATIONS = frozenset({"content-location", "location", "refresh"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(?i)(https?:)?//[^\s;,'\"]*")


def upstream_headers(request: InboundRequest) -> Headers:
    """Returns the client's end-to-end headers, then ours. The caller adds Host and framing."""
    head = request.head
    nominated = _nominated(head.fields.get("connection", ""))
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
        ("X-Team-Id", request.team_id),
        ("X-Token-Id", request.token_id),
        ("X-Request-Id", request.request_id),
        ("X-Forwarded-For", head.peer),
        ("X-Forwarded-Proto", head.scheme),
        ("X-Forwarded-Host", head.fields.get("host", "")),
    ]


def client_headers(
    received: Headers, added: Headers, is_chunked: bool, upstream_url: str
) -> Headers:
    """Returns the upstream's end-to-end headers, with `added` in place of any of the same name.

    Redirects to the upstream's own address become paths, which lead back here. Raises
    UpstreamBroken for framing that the client could read in another way than we do; other
    violations of HTTP are refused where the answer is read.
    """
    dropped = {name.lower() for name, _ in added}
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
    return [(name, value) for name, value in passed if name.lower() not in dropped] + added


def without_address(value: str, upstream_url: str) -> str:
    """Returns a header's value, in which URLs of the upstream become paths, to hide its address."""

    def shorten(url: re.Match[str]) -> str:
        try:
            if _address(url[0], upstream_url) != _address(upstream_url, upstream_url):
                return url[0]
        except ValueError:  # the port is no number, so it is not the upstream's
            return url[0]
        _, _, path, query, fragment = urlsplit(url[0])
        path = path.removeprefix(urlsplit(upstream_url).path.rstrip("/"))
        # After two slashes, the beginning of the path would be read as a host.
        return urlunsplit(("", "", "/" + path.lstrip("/\\"), query, fragment))

    return _URL.sub(shorten, value)


def _address(url: str, base_url: str) -> tuple[str | None, int | None]:
    """Returns host and port, which is the scheme's default if the URL has none."""
    parts = urlsplit(url, scheme=urlsplit(base_url).scheme)
    return parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)


def _nominated(connection: str) -> frozenset[str]:
    """Returns the fields that a Connection header declares to be for this hop only."""
    if not connection:
        return frozenset()
    return frozenset(name.strip().lower() for name in connection.split(",") if name.strip())
