"""The weights service as an application of its own: composition root of `python -m weights`."""

from importlib import import_module

from flask import Flask, Response, jsonify, request
from typing_extensions import TypedDict  # pydantic describes typing's from Python 3.12 on
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from common.openapi import Application, add_description
from common.operations import operation
from common.web_pages import protect
from weights.routes import create_blueprint
from weights.routes.answers import ReferenceAnswer
from weights.samplers import SAMPLERS
from weights.service import WeightsService
from weights.settings import Settings, load_settings
from weights.store import WeightStore
from weights.store.sqlite_store import SqliteStore


class Health(TypedDict):
    status: str


def create_app(settings: Settings | None = None, store: WeightStore | None = None) -> Flask:
    """Returns the application. Raises StartupError."""
    settings = settings or load_settings()
    import_module("scipy.optimize")  # slow, so the first request should not wait for it
    service = create_service(settings, store)
    app = Flask(__name__, static_folder=None)
    protect(app, *settings.allowed_hosts, settings.host)
    app.register_blueprint(create_blueprint(service, settings.max_body_bytes))
    app.register_error_handler(HTTPException, _http_error)

    @app.get("/health")
    @operation("Whether it answers.", {200: Health})
    def health() -> Health:
        return Health(status="ok")

    add_description(app, ALONE)
    return app


ALONE = Application(
    title="Hearth weights search",
    description="How to split a model over unequal machines, found by measuring.",
    failures=lambda rule: dict.fromkeys([*[404] * rule.has_parameters, 500], ReferenceAnswer),
)


def create_service(settings: Settings, store: WeightStore | None = None) -> WeightsService:
    """Returns the service over `store`, by default the configured one. Opens nothing yet. Raises
    StartupError."""
    return WeightsService(store or _choose_store(settings), SAMPLERS[settings.sampler])


def _choose_store(settings: Settings) -> WeightStore:
    if not settings.redis_url:
        return SqliteStore(settings.db_path)
    # The client is slow to import, so it is imported only with a Redis.
    from weights.store.redis_store import RedisStore

    return RedisStore(settings.redis_url)


def _http_error(error: HTTPException) -> Response:
    message = f"{request.method} {request.path}: {error.name}; /docs/ has the routes"
    response = jsonify(status_code=error.code, message=message)
    response.status_code = error.code or 500
    if isinstance(error, MethodNotAllowed):
        response.allow.update(error.valid_methods or ())
    return response
