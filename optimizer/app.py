"""The optimizer as an application of its own: composition root of `python -m optimizer` and of

gunicorn -c optimizer/gunicorn.conf.py "optimizer.app:create_app()"
"""

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from common.errors import StoreFailed
from common.stores import RecordStore
from common.stores.sqlite_store import SqliteRecords
from optimizer.candidates.replicas import SizingCache
from optimizer.errors import InvalidRequest, StartupError
from optimizer.metrics import ReplicaGauges
from optimizer.optimize import SolveOptions
from optimizer.routes import add_not_found_pages, create_blueprint
from optimizer.service import ServiceOptions, StatefulService, StatelessService
from optimizer.settings import Settings, load_settings


def create_app(settings: Settings | None = None) -> Flask:
    """Raises StartupError."""
    settings = settings or load_settings()
    service = create_service(settings)
    registry = CollectorRegistry()
    registry.register(ReplicaGauges(lambda: service.state, settings.namespace))
    app = Flask(__name__)
    app.register_blueprint(create_blueprint(service, settings))
    add_not_found_pages(app)

    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    app.add_url_rule("/metrics", "metrics", metrics)
    app.add_url_rule("/health", "health", lambda: {"status": "ok", "stateful": settings.stateful})
    return app


def create_service(settings: Settings) -> StatelessService | StatefulService:
    """The service of the configured mode, its state restored. Raises StartupError."""
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
        raise StartupError([f"{error}; {remedy}"]) from error


def _create_store(settings: Settings) -> RecordStore:
    if not settings.redis_url:
        return SqliteRecords(settings.store_path)
    # The client takes long to import: only who has a Redis waits for it.
    from common.stores.redis_store import RedisRecords

    return RedisRecords(settings.redis_url, prefix="optimizer")
