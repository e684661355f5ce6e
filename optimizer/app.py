"""The optimizer as an application of its own: composition root of `python -m optimizer`."""

from importlib import import_module

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from typing_extensions import TypedDict  # pydantic describes typing's from Python 3.12 on

from common.errors import StoreFailed
from common.openapi import Application, add_description
from common.operations import operation
from common.stores import RecordStore
from common.stores.sqlite_store import SqliteRecords
from common.web_pages import protect
from optimizer.candidates.replicas import SizingCache
from optimizer.errors import InvalidRequest, StartupError
from optimizer.metrics import ReplicaGauges
from optimizer.optimize import SolveOptions
from optimizer.routes import add_not_found_pages, create_blueprint
from optimizer.routes.http import NO_ROUTE
from optimizer.service import ServiceOptions, StatefulService, StatelessService
from optimizer.settings import Settings, load_settings


class Health(TypedDict):
    status: str
    stateful: bool


def create_app(settings: Settings | None = None) -> Flask:
    """Raises StartupError."""
    settings = settings or load_settings()
    import_module("scipy.optimize.elementwise")  # slow, so the first request should not wait for it
    service = create_service(settings)
    registry = CollectorRegistry()
    registry.register(ReplicaGauges(lambda: service.state, settings.namespace))
    app = Flask(__name__, static_folder=None)
    protect(app, *settings.allowed_hosts, settings.host)
    app.register_blueprint(create_blueprint(service, settings))
    add_not_found_pages(app)

    @app.get("/metrics")
    @operation("Replicas as gauges, for Prometheus.", {200: "text/plain"})
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    @operation("Whether it answers, and its mode.", {200: Health})
    def health() -> Health:
        return Health(status="ok", stateful=settings.stateful)

    add_description(app, ALONE)
    return app


ALONE = Application(
    title="Hearth optimizer",
    description="Which accelerators, how many replicas and which batch size meet service levels "
    "at least cost.",
    # These are answered with pages instead of JSON, as in the reference.
    failures=lambda rule: {500: "text/html"} | ({404: NO_ROUTE} if rule.has_parameters else {}),
)


def create_service(settings: Settings) -> StatelessService | StatefulService:
    """Returns the service of the configured mode, with its state restored. Raises StartupError."""
    options = ServiceOptions(
        SolveOptions(SizingCache(), settings.milp_time_limit_s, settings.milp_relative_gap),
        settings.min_gain_percent,
        settings.hold_minutes,
    )
    if not settings.stateful:
        return StatelessService(options)
    try:
        return StatefulService(_create_store(settings), options)
    except (StoreFailed, InvalidRequest) as error:
        remedy = "set REDIS_URL or OPTIMIZER_STORE_PATH to a store that can be read"
        raise StartupError(f"{error}; {remedy}") from error


def _create_store(settings: Settings) -> RecordStore:
    if not settings.redis_url:
        return SqliteRecords(settings.store_path)
    # The client is slow to import, so it is imported only with a Redis.
    from common.stores.redis_store import RedisRecords

    return RedisRecords(settings.redis_url, prefix="optimizer")
