"""Which headers pass through the proxy, and which ones it sets itself. Pure functions."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from proxy.auth import Principal
from proxy.errors import Headers, UpstreamBroken
from proxy.inbound import Environ

# RFC 9110, section 7.6.1, and the fields gunicorn writes itself.
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
# What a client may not claim: who it is, where it comes from. Expect: gunicorn has answered it.
NEVER_FORWARDED = HOP_BY_HOP | {
    "authorization",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "x-real-ip",
    "x-request-id",
    "x-team-id",
    "x-token-id",
}
_FOLD = re.compile(r"\r?\n[ \t]+")
_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIELD_VALUE = re.compile(r"[ \t\x21-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class Identity:
    """What the proxy tells the upstream about a request."""

    principal: Principal
    request_id: str


def upstream_headers(environ: Environ, identity: Identity) -> Headers:
    """The client's end-to-end headers, then ours. Host and framing are the caller's."""
    nominated = _nominated(environ.get("HTTP_CONNECTION", ""))
    headers = [
        (name.title(), value)
        for name, value in _client_headers(environ)
        if name not in NEVER_FORWARDED
        and name not in nominated
        and not name.startswith("x-forwarded-")
    ]
    return [
        *headers,
        ("X-Team-Id", identity.principal.team_id),
        ("X-Token-Id", identity.principal.token_id),
        ("X-Request-Id", identity.request_id),
        ("X-Forwarded-For", str(environ.get("REMOTE_ADDR", ""))),
        ("X-Forwarded-Proto", str(environ["wsgi.url_scheme"])),
        ("X-Forwarded-Host", str(environ.get("HTTP_HOST", ""))),
    ]


def client_headers(received: Headers, ours: Headers, is_chunked: bool) -> Headers:
    """The upstream's end-to-end headers, with `ours` in place of any of the same name.

    Raises UpstreamBroken for a header that HTTP does not allow, and for framing that the client
    could read in another way than we do.
    """
    _check_framing(received, is_chunked)
    nominated = _nominated(",".join(v for n, v in received if n.lower() == "connection"))
    dropped = HOP_BY_HOP | nominated | {name.lower() for name, _ in ours} | {"server", "date"}
    if is_chunked:
        dropped |= {"content-length"}
    passed = []
    for name, raw_value in received:
        value = _FOLD.sub(" ", raw_value)
        if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise UpstreamBroken(f"an unusable response header {name[:64]!r}")
        if name.lower() not in dropped:
            passed.append((name, value))
    return passed + ours


def _check_framing(received: Headers, is_chunked: bool) -> None:
    lengths = [value.strip() for name, value in received if name.lower() == "content-length"]
    if len(lengths) > 1 or not all(re.fullmatch(r"[0-9]{1,18}", value) for value in lengths):
        raise UpstreamBroken("more than one Content-Length, or one that is no number")
    if not is_chunked and any(name.lower() == "transfer-encoding" for name, _ in received):
        raise UpstreamBroken("an unknown Transfer-Encoding")


def _client_headers(environ: Environ) -> Iterable[tuple[str, str]]:
    for key, value in environ.items():
        if key.startswith("HTTP_"):
            yield key[5:].replace("_", "-").lower(), value
    if content_type := environ.get("CONTENT_TYPE"):
        yield "content-type", content_type


def _nominated(connection: str) -> frozenset[str]:
    """The fields a Connection header declares to be for this hop only."""
    return frozenset(name.strip().lower() for name in connection.split(",") if name.strip())
