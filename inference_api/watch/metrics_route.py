"""The metrics for Prometheus, in its text format."""

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from common.operations import operation


def create_blueprint(registry: CollectorRegistry) -> Blueprint:
    blueprint = Blueprint("metrics", __name__)

    @blueprint.get("/metrics")
    @operation("Metrics in Prometheus' text format.", {200: "text/plain"})
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return blueprint
