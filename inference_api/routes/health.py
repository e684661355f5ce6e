"""Is the process alive, may it get requests, and how to take it out of service."""

import ipaddress
from collections.abc import Callable
from dataclasses import asdict

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel

from inference_api import __version__
from inference_api.errors import Unauthorized
from inference_api.routes.auth import has_valid_token
from inference_api.routes.openapi_document import Error, Operations
from inference_api.scheduling.decode_backend import DecodeBackend, Phase
from inference_api.scheduling.input_queue import InputQueue
from inference_api.scheduling.loaded_model import StepTotals
from inference_api.scheduling.output_queues import OutputQueues
from inference_api.settings import Settings


class Readiness(BaseModel):
    """What `/ready` answers, whatever its status."""

    status: Phase
    model: str
    user_rows: int
    busy_rows: int
    queued: int
    sessions: int
    totals: StepTotals


class Draining(BaseModel):
    status: Phase


class Version(BaseModel):
    version: str


LIVENESS = {
    "summary": "Liveness: 500 with the reason once the process should be replaced.",
    "answers": {200: "text/plain", 500: "text/plain"},
}
OPERATIONS: Operations = {
    "GET /health": LIVENESS,
    "GET /ping": LIVENESS,
    "POST /ping": LIVENESS,
    "GET /version": {"summary": "Hearth's own version.", "answers": {200: Version}},
    "GET /ready": {
        "summary": "Readiness, and how the decode loop has fared so far.",
        "answers": {200: Readiness, 503: Readiness},
    },
    "POST /drain": {
        "summary": "Admit nothing more, finish what runs, then end. Local callers or a token.",
        "answers": {202: Draining, 401: Error},
    },
}


def create_blueprint(
    backend: DecodeBackend,
    input_queue: InputQueue,
    output_queues: OutputQueues,
    settings: Settings,
    exit_process: Callable[[], None],
) -> Blueprint:
    blueprint = Blueprint("health", __name__)

    @blueprint.get("/health")
    @blueprint.route("/ping", methods=["GET", "POST"])  # as vLLM has it, for SageMaker
    def health() -> Response:
        return liveness(backend)

    @blueprint.get("/version")
    def version() -> Response:
        return jsonify({"version": __version__})

    @blueprint.get("/ready")
    def ready() -> tuple[Response, int]:
        """Readiness, and how the decode loop has fared so far."""
        snapshot, phase = backend.snapshot, backend.phase
        state = {
            "status": str(phase),
            "model": settings.default_model.name,
            "user_rows": backend.max_users,
            "busy_rows": snapshot.busy_rows,
            "queued": len(input_queue),
            "sessions": len(output_queues),
            "totals": asdict(snapshot.totals),
        }
        return jsonify(state), 200 if phase is Phase.READY else 503

    @blueprint.post("/drain")
    def drain() -> tuple[Response, int]:
        """Admit nothing more, finish what runs, then let the process end. Idempotent."""
        if not (_is_local() or has_valid_token(settings)):
            raise Unauthorized("Draining takes a local caller or a bearer token.")
        backend.drain(on_drained=exit_process)
        return jsonify({"status": str(backend.phase)}), 202

    return blueprint


def liveness(backend: DecodeBackend) -> Response:
    """200 while the decode thread lives, 500 with the reason once it does not."""
    reason = backend.unhealthy_reason()
    return Response(reason or "OK", 500 if reason else 200, content_type="text/plain")


def _is_local() -> bool:
    """True for a caller on this machine itself; one behind a proxy on this machine is not."""
    if "X-Forwarded-For" in request.headers or request.remote_addr is None:
        return False
    return ipaddress.ip_address(request.remote_addr).is_loopback
