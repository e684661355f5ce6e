"""Protects a service from other web pages: checks of Host and Origin, and CORS.

Services trust their callers, but a browser calls them for any page it shows. Three things identify
requests of other pages: `Host`, which has another name if a page made its own name point here (DNS
rebinding); `Origin` and `Sec-Fetch-Site`, which only browsers can set; and a JSON body, which
browsers send for another page only after asking.

Reading needs no check, because browsers hide answers from other pages. So every GET must only read;
GET routes of the optimizer's reference that change something are not for browsers.
"""

import ipaddress
import re
from collections.abc import Set
from dataclasses import dataclass

from flask import Flask, Response, jsonify, request

from common.addresses import ANY, is_allowed
from common.errors import WireError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CHANGED_BY_GET = re.compile(r"/(add|remove|apply)[A-Z]")
OWN_SUFFIXES = (".localhost", ".local", ".internal", ".svc", ".svc.cluster.local")
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]*[^\[\]:.])\.?)(?::[0-9]*)?")
FOREIGN_SITES = frozenset({"cross-site", "same-site"})
PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "*, Authorization",  # the star does not include Authorization
    "Access-Control-Max-Age": "600",
}


class PageRefused(WireError):
    """Base class of refusals of requests that another page may have made a browser send."""


class HostNotAllowed(PageRefused):
    status = 403
    code = "host_not_allowed"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"Host '{host[:255]}' is not known to be this server; add it to ALLOWED_HOSTS (in a "
            "cluster's file: allowed_hosts), or ask by address."
        )


class OriginNotAllowed(PageRefused):
    """A page of `origin` may not send the request; `origin` is empty if no page may."""

    status = 403
    code = "origin_not_allowed"

    def __init__(self, origin: str, path: str) -> None:
        super().__init__(
            f"Pages of origin '{origin[:255]}' may not use {path[:255]}; CORS_ORIGINS lists those "
            "that may use the inference routes, and all others are for pages of this server."
            if origin
            else f"{path[:255]} is not for pages that a browser shows; ask with curl or a client."
        )


class NotJson(PageRefused):
    status = 415
    code = "unsupported_media_type"

    def __init__(self, media_type: str) -> None:
        super().__init__(
            f"The body is declared as '{media_type[:255]}'; send it with Content-Type: "
            "application/json."
        )


@dataclass(frozen=True, slots=True)
class PageRules:
    """Who may use a service. `hosts` are this server's public names; `*` means any. Pages of
    `origins` may use the routes of the blueprints in `open_to_origins`; other routes are only for
    this server's own pages. `needs_json` requires that bodies are declared as JSON; clients of the
    original optimizer and search do not declare them."""

    hosts: Set[str]
    needs_json: bool = False
    origins: Set[str] = frozenset()
    open_to_origins: Set[str] = frozenset()


def register_page_check(app: Flask, rules: PageRules) -> None:
    """Register the checks. Do so before any check of tokens, because preflights carry none."""

    @app.before_request
    def check_origin() -> Response | None:
        # Not request.host, which is empty for names that Werkzeug rejects and browsers accept.
        host = request.headers.get("Host", "")
        if not is_own_host(host, rules.hosts):
            raise HostNotAllowed(host)
        is_open = _is_open(rules)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            if not is_open:
                raise OriginNotAllowed(request.headers.get("Origin", ""), request.path)
            return Response(status=204, headers=PREFLIGHT_HEADERS)
        if request.method in SAFE_METHODS:
            if CHANGED_BY_GET.match(request.path) and _is_browser():
                raise OriginNotAllowed("", request.path)
        elif _is_foreign() and not is_open:
            raise OriginNotAllowed(request.headers.get("Origin", ""), request.path)
        elif (
            rules.needs_json
            and request.blueprint not in rules.open_to_origins
            and (request.content_length or "Transfer-Encoding" in request.headers)
            and not request.is_json
        ):
            raise NotJson(request.mimetype)
        return None

    @app.after_request
    def let_listed_pages_read(response: Response) -> Response:
        if ANY not in rules.origins and rules.origins:
            response.vary.add("Origin")
        if _is_open(rules):
            is_any = ANY in rules.origins
            response.headers["Access-Control-Allow-Origin"] = (
                ANY if is_any else request.headers["Origin"]
            )
            response.headers["Access-Control-Expose-Headers"] = ANY
        return response


def protect(app: Flask, *host_names: str) -> None:
    """Register the checks, and a handler of refusals, for an application whose routes are for its
    own pages alone."""
    register_page_check(app, PageRules(frozenset(map(str.lower, host_names))))

    @app.errorhandler(PageRefused)
    def refused(error: PageRefused) -> tuple[Response, int]:
        return jsonify(error.body()), error.status


def is_own_host(host: str, names: Set[str]) -> bool:
    """Returns whether a Host header names this server: by address, by a name that outsiders cannot
    control, or by one of `names`. A missing header is allowed, because browsers always send one."""
    if not host or ANY in names:
        return True
    match = HOST.fullmatch(host.lower())
    name = match[1] or match[2] if match else "."
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(OWN_SUFFIXES) or name in names
    return True


def _is_open(rules: PageRules) -> bool:
    """Returns whether the page that sends the request may use this route."""
    origin = request.headers.get("Origin")
    return request.blueprint in rules.open_to_origins and is_allowed(origin, rules.origins)


def _is_foreign() -> bool:
    """Returns whether another server's page made a browser send the request."""
    if (site := request.headers.get("Sec-Fetch-Site")) is not None:
        return site in FOREIGN_SITES
    origin = request.headers.get("Origin")
    return (
        origin is not None and origin.partition("://")[2] != request.headers.get("Host", "").lower()
    )


def _is_browser() -> bool:
    """Returns whether a browser sent the request. Over plain HTTP to another machine, browsers send
    neither Origin nor Sec-Fetch-Site with a GET."""
    headers = request.headers
    agent = headers.get("User-Agent", "")
    return "Sec-Fetch-Site" in headers or "Origin" in headers or agent.startswith("Mozilla/")
