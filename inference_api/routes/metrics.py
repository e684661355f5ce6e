"""The metrics for Prometheus, in its text format."""

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from inference_api.routes.openapi_document import Operations

OPERATIONS: Operations = {
    "GET /metrics": {
        "summary": "Metrics in Prometheus' text format.",
        "answers": {200: "text/plain"},
    },
}


def create_blueprint(registry: CollectorRegistry) -> Blueprint:
    blueprint = Blueprint("metrics", __name__)

    @blueprint.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return blueprint
