"""Health, readiness and draining of the process."""

import ipaddress
from collections.abc import Callable

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel

from common import __version__
from common.errors import Error
from common.operations import operation
from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.served_model import StepTotals
from inference_api.core.status import Phase
from inference_api.errors import Unauthorized
from inference_api.web.auth import has_valid_token


class Readiness(BaseModel):
    """The answer of `/ready`, with status 200 or 503."""

    status: Phase
    model: str
    user_rows: int
    busy_rows: int
    queued: int
    paused: int
    """Queued requests that had begun, then paused, and wait for pages."""
    sessions: int
    context_tokens: int | None
    """Most tokens of a row of the default model; null before it is known."""
    pages: int
    cached_pages: int
    free_pages: int
    totals: StepTotals


class Draining(BaseModel):
    status: Phase


class Version(BaseModel):
    version: str


def create_blueprint(backend: DecodeBackend, exit_process: Callable[[], None]) -> Blueprint:
    blueprint = Blueprint("health", __name__)

    @blueprint.get("/health")
    @blueprint.route("/ping", methods=["GET", "POST"])  # like vLLM's, for SageMaker
    @operation(
        "Liveness: 500 with the reason once the process should be replaced.",
        {200: "text/plain", 500: "text/plain"},
    )
    def health() -> Response:
        return liveness(backend)

    @blueprint.get("/version")
    @operation("Hearth's own version.", {200: Version})
    def version() -> Response:
        return jsonify(Version(version=__version__).model_dump())

    @blueprint.get("/ready")
    @operation(
        "Readiness, and how the decode loop has fared so far.", {200: Readiness, 503: Readiness}
    )
    def ready() -> tuple[Response, int]:
        state = _readiness(backend)
        return jsonify(state.model_dump()), 200 if state.status is Phase.READY else 503

    @blueprint.post("/drain")
    @operation(
        "Admit nothing more, finish what runs, then end. Local callers or a token.",
        {202: Draining, 401: Error},
    )
    def drain() -> tuple[Response, int]:
        """Idempotent."""
        if not (_is_local() or has_valid_token(backend.settings)):
            raise Unauthorized("Draining takes a local caller or a bearer token.")
        backend.drain(on_drained=exit_process)
        return jsonify(Draining(status=backend.phase).model_dump()), 202

    return blueprint


def _readiness(backend: DecodeBackend) -> Readiness:
    model, snapshot = backend.settings.default_model.name, backend.snapshot
    served = backend.served.get(model)
    return Readiness(
        status=backend.phase,
        model=model,
        user_rows=backend.max_users,
        busy_rows=snapshot.busy_rows,
        queued=len(backend.input_queue) + snapshot.paused,
        paused=snapshot.paused,
        context_tokens=None if served is None else served.max_seq_len,
        pages=snapshot.pages.total,
        cached_pages=snapshot.pages.cached,
        free_pages=snapshot.pages.free,
        sessions=len(backend.output_queues),
        totals=snapshot.totals,
    )


def liveness(backend: DecodeBackend) -> Response:
    """Returns status 200 while the process is healthy, then 500 with the reason."""
    reason = backend.unhealthy_reason()
    return Response(reason or "OK", 500 if reason else 200, content_type="text/plain")


def _is_local() -> bool:
    """Returns whether the caller is on this machine, without a proxy in between."""
    if "X-Forwarded-For" in request.headers or request.remote_addr is None:
        return False
    return ipaddress.ip_address(request.remote_addr).is_loopback
