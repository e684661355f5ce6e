"""Access of web pages to this server: a check of Host and Origin, and CORS.

The server trusts who reaches it, and a browser reaches it for whatever page it shows. Three things
tell its pages from others': `Host`, which names another host than ours when a page had its own
name point here (DNS rebinding); `Origin` and `Sec-Fetch-Site`, which browsers set and no page can;
and a JSON body, for which browsers ask first whether its page may send it.

Reading needs no check, as a browser keeps answers from pages of origins that the answer does not
name. So every GET must only read; those of the optimizer's reference that change something
are not for browsers at all.
"""

import ipaddress
import re

from flask import Flask, Request, Response, request

from common.origins import ANY, is_allowed
from inference_api.errors import HostNotAllowed, NotJson, OriginNotAllowed
from inference_api.settings import Settings

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CHANGED_BY_GET = re.compile(r"/(add|remove|apply)[A-Z]")
# What CORS_ORIGINS opens; all other routes are for pages of this server alone.
INFERENCE = frozenset({"embeddings", "generate", "messages", "openai", "responses", "tokenize"})
OWN_SUFFIXES = (".localhost", ".local", ".internal", ".svc", ".svc.cluster.local")
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]*[^\[\]:.])\.?)(?::[0-9]*)?")
FOREIGN_SITES = frozenset({"cross-site", "same-site"})
PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "*, Authorization",  # which a star does not include
    "Access-Control-Max-Age": "600",
}


def register_origin_check(app: Flask, settings: Settings) -> None:
    """To be registered before the check of tokens: preflights carry none."""

    @app.before_request
    def check_origin() -> Response | None:
        # Not request.host, which is empty for names that Werkzeug finds odd and browsers do not.
        host = request.headers.get("Host", "")
        if not is_own_host(host, settings):
            raise HostNotAllowed(host)
        is_open = _is_open(settings)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            if not is_open:
                raise OriginNotAllowed(request.headers.get("Origin", ""), request.path)
            return Response(status=204, headers=PREFLIGHT_HEADERS)
        if request.method in SAFE_METHODS:
            if CHANGED_BY_GET.match(request.path) and _is_browser(request):
                raise OriginNotAllowed("", request.path)
        elif _is_foreign(request) and not is_open:
            raise OriginNotAllowed(request.headers.get("Origin", ""), request.path)
        elif request.blueprint not in INFERENCE and _has_body(request) and not request.is_json:
            raise NotJson(request.mimetype)
        return None

    @app.after_request
    def let_listed_pages_read(response: Response) -> Response:
        if ANY not in settings.cors_origins and settings.cors_origins:
            response.vary.add("Origin")
        if _is_open(settings):
            is_any = ANY in settings.cors_origins
            response.headers["Access-Control-Allow-Origin"] = (
                ANY if is_any else request.headers["Origin"]
            )
            response.headers["Access-Control-Expose-Headers"] = ANY
        return response


def is_own_host(host: str, settings: Settings) -> bool:
    """Whether a Host header names this server: by address, by a name that no one outside can have
    point here, or by one of ALLOWED_HOSTS. None at all is no browser's."""
    if not host or ANY in settings.allowed_hosts:
        return True
    match = HOST.fullmatch(host.lower())
    name = match[1] or match[2] if match else "."
    try:
        ipaddress.ip_address(name)
    except ValueError:
        own = {*settings.allowed_hosts, settings.service_host.lower()}
        return "." not in name or name.endswith(OWN_SUFFIXES) or name in own
    return True


def _is_open(settings: Settings) -> bool:
    """Whether the page that asks may use this route by CORS_ORIGINS."""
    origin = request.headers.get("Origin")
    return request.blueprint in INFERENCE and is_allowed(origin, settings.cors_origins)


def _is_foreign(asked: Request) -> bool:
    """Whether a page that is not ours had a browser send this."""
    if (site := asked.headers.get("Sec-Fetch-Site")) is not None:
        return site in FOREIGN_SITES
    origin = asked.headers.get("Origin")
    return (
        origin is not None and origin.partition("://")[2] != asked.headers.get("Host", "").lower()
    )


def _is_browser(asked: Request) -> bool:
    """Browsers leave the other two out of a GET over plain HTTP to another machine."""
    headers = asked.headers
    agent = headers.get("User-Agent", "")
    return "Sec-Fetch-Site" in headers or "Origin" in headers or agent.startswith("Mozilla/")


def _has_body(asked: Request) -> bool:
    return bool(asked.content_length) or "Transfer-Encoding" in asked.headers
