"""Decides which web pages may call the proxy and read its answers. Pure functions.

A browser hides an answer from a page of another origin unless the answer names that origin, and
asks first (a preflight) before it sends a token or JSON for such a page. CORS_ORIGINS lists the
allowed origins. A token in a header needs no further check, because a page has one only if it was
given it. A browser sends the token in a cookie for any page, so then the page is checked.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from common.addresses import ANY, is_allowed
from proxy.clients.request_head import RequestHead
from proxy.errors import Headers, OriginNotAllowed

# No answer allows credentials, so the star means all headers, except Authorization.
PREFLIGHT_HEADERS: Headers = [
    ("Access-Control-Allow-Methods", "GET, POST, PUT, DELETE"),
    ("Access-Control-Allow-Headers", "*, Authorization"),
    ("Access-Control-Max-Age", "600"),
]
PREFLIGHT_FIELDS = frozenset({"origin", "access-control-request-method"})
READABLE_HEADERS = ("Access-Control-Expose-Headers", "*")


def is_preflight(head: RequestHead) -> bool:
    return head.method == "OPTIONS" and head.fields.keys() >= PREFLIGHT_FIELDS


def cors_headers(origin: str | None, allowed: Collection[str]) -> Headers:
    """Returns the headers that let an allowed page read an answer."""
    if not allowed:
        return []
    if ANY in allowed:
        return [("Access-Control-Allow-Origin", ANY), READABLE_HEADERS]
    vary = ("Vary", "Origin")
    if origin is None or not is_allowed(origin, allowed):
        return [vary]
    return [("Access-Control-Allow-Origin", origin), READABLE_HEADERS, vary]


def check_preflight(head: RequestHead, allowed: Collection[str]) -> None:
    """Raises OriginNotAllowed for a preflight of an origin that is not allowed."""
    origin = head.fields.get("origin")
    if is_preflight(head) and not is_allowed(origin, allowed):
        raise OriginNotAllowed(
            f"Pages of origin {str(origin)[:128]!r} may not use this proxy; "
            "have it added to CORS_ORIGINS."
        )


def check_own_page(head: RequestHead) -> None:
    """Raises OriginNotAllowed unless the browser says that a page of ours asks. Origin decides if
    Sec-Fetch-Site is missing, which browsers omit over plain HTTP to another machine."""
    site = head.fields.get("sec-fetch-site")
    origin = urlsplit(head.fields.get("origin", "")[:256]).netloc.lower()
    host = head.fields.get("host", "").lower()
    if site != "same-origin" if site is not None else not origin or origin != host:
        raise OriginNotAllowed(
            "With the login's cookie, only pages of this proxy may change something; "
            "send the token as 'Authorization: Bearer' instead."
        )
