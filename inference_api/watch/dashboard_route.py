"""Serves the dashboard at `/` for browsers, its files, and the data it reads.

The files in `watch/dashboard` are served unchanged. Their URLs contain a hash of all files, so
browsers may cache them for ever and never mix two versions.
"""

import mimetypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, jsonify, request
from werkzeug.exceptions import NotFound

from common.errors import Error
from common.operations import operation
from inference_api.core.decode_backend import DecodeBackend
from inference_api.errors import NoCluster
from inference_api.runner import RunnerFacts
from inference_api.watch.cluster_state import ClusterAnswer, ClusterState
from inference_api.watch.health_route import liveness
from inference_api.watch.recent_requests import RecentRequest, RecentRequests
from inference_api.web.auth import ASSETS_PATH

FOLDER = Path(__file__).resolve().parent / "dashboard"
INDEX = "index.html"
IMMUTABLE = "public, max-age=31536000, immutable"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Page:
    """The files, read once. In the page, `{assets}`, `{optimizer}` and `{cluster}` are replaced."""

    version: str
    index: str
    files: Mapping[str, bytes]

    @classmethod
    def read(cls, optimizer_mode: str, has_cluster: bool) -> "Page":
        files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
        version = sha256(b"".join(name.encode() + files[name] for name in files)).hexdigest()[:12]
        index = files.pop(INDEX).decode()
        index = index.replace("{assets}", f"{ASSETS_PATH}{version}")
        index = index.replace("{optimizer}", optimizer_mode)
        return cls(version, index.replace("{cluster}", "yes" if has_cluster else "no"), files)


@dataclass(frozen=True, slots=True)
class DashboardModel:
    """A served model. `speculation` names its draft sources; `facts` is null for a mock."""

    name: str
    user_rows: int
    context_tokens: int
    speculation: tuple[str, ...]
    facts: RunnerFacts | None


def create_blueprint(
    backend: DecodeBackend,
    live_state: Callable[[], dict[str, Any]],
    recent: RecentRequests,
    cluster: ClusterState | None,
    page: Page,
) -> Blueprint:
    blueprint = Blueprint("dashboard", __name__)
    _add_page(blueprint, backend, page)

    @blueprint.get("/dashboard/state")
    @operation(
        "What the dashboard polls: rows, queue, totals and latencies.", {200: dict[str, Any]}
    )
    def state() -> Response:
        return _fresh(live_state())

    @blueprint.get("/dashboard/models")
    @operation(
        "What serves each model: its family and size, device, kernels, numbers and memory; none "
        "before they are loaded.",
        {200: list[DashboardModel]},
    )
    def models() -> Response:
        return _fresh(
            [
                DashboardModel(m.name, m.max_rows, m.max_seq_len, m.draft_sources, m.facts)
                for m in backend.served.values()
            ]
        )

    @blueprint.get("/dashboard/requests")
    @operation(
        "The last requests, those that ended last first, with their timings.",
        {200: list[RecentRequest]},
    )
    def requests() -> Response:
        return _fresh(recent.newest_first())

    @blueprint.get("/dashboard/cluster")
    @operation(
        "What the cluster's controller at CLUSTER_URL says.",
        {200: ClusterAnswer, 404: Error, 503: Error},
    )
    def cluster_state() -> Response:
        if cluster is None:
            raise NoCluster
        return _fresh(cluster.read())

    return blueprint


def _add_page(blueprint: Blueprint, backend: DecodeBackend, page: Page) -> None:
    @blueprint.get("/")
    @operation(
        "The dashboard for clients that ask for HTML; for all others the same as /health.",
        {200: ("text/html", "text/plain"), 304: (), 500: "text/plain"},
    )
    def home() -> Response:
        response = _index(page) if _wants_html() else liveness(backend)
        response.vary.add("Accept")
        return response

    @blueprint.get(f"{ASSETS_PATH}<version>/<name>")
    @operation("Scripts and styles of the dashboard.", {200: "*/*"})
    def asset(version: str, name: str) -> Response:
        if version != page.version or name not in page.files:
            raise NotFound
        content_type = f"{mimetypes.guess_type(name)[0]}; charset=utf-8"
        response = Response(page.files[name], content_type=content_type)
        response.headers.update({**SECURITY_HEADERS, "Cache-Control": IMMUTABLE})
        return response


def _fresh(answer: Any) -> Response:
    response = jsonify(answer)
    response.headers["Cache-Control"] = "no-store"
    return response


def _wants_html() -> bool:
    """Returns whether the client prefers HTML to plain text. `*/*`, as curl sends, does not."""
    return request.accept_mimetypes.best_match(["text/plain", "text/html"]) == "text/html"


def _index(page: Page) -> Response:
    response = Response(page.index, content_type="text/html; charset=utf-8")
    response.headers.update({**SECURITY_HEADERS, "Cache-Control": "no-cache"})
    response.add_etag()
    response.make_conditional(request)
    return response
