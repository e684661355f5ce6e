"""The optimizer's HTTP routes. Paths, methods and bodies are the reference's.

A composition root mounts `create_blueprint`. Views run on request threads and share the service.
"""

from functools import partial
from http import HTTPStatus

from flask import Blueprint, Flask, Response

from common.errors import StoreFailed, WireError
from common.http_routes import BodyTooLarge, HttpRoutes, Wire
from common.numerics import NotInstalled
from common.turns import TooManyQuestions
from optimizer.errors import Fault, InvalidRequest, OptimizerError
from optimizer.inferno_json import Reading, decode, read
from optimizer.routes.entities import add_edit_routes, add_read_routes
from optimizer.routes.http import FaultAnswer, Problem, json_response, no_route
from optimizer.routes.planning import add_planning_routes, add_stateful_planning_routes
from optimizer.service import StatefulService, StatelessService
from optimizer.settings import Settings

__all__ = ["add_not_found_pages", "create_blueprint"]


def create_blueprint(service: StatelessService | StatefulService, settings: Settings) -> Blueprint:
    """Returns the routes: reads, questions and /optimizeOne; for a stateful service also edits."""
    blueprint = Blueprint("optimizer", __name__)
    reading = Reading.REFERENCE if settings.unknown_keys == "ignore" else Reading.STRICT
    wire = Wire(
        settings.max_body_bytes,
        "OPTIMIZER_MAX_BODY_BYTES",
        decode,
        partial(read, reading=reading),
        json_response,
        lambda message, _: InvalidRequest([Fault("", message)]),
    )
    http = HttpRoutes(blueprint, wire)
    add_read_routes(http, service)
    add_planning_routes(http, service)
    if isinstance(service, StatefulService):
        add_edit_routes(http, service)
        add_stateful_planning_routes(http, service)
    for kind in (OptimizerError, StoreFailed, TooManyQuestions, BodyTooLarge, NotInstalled):
        blueprint.register_error_handler(kind, _error_response)
    return blueprint


def add_not_found_pages(app: Flask) -> None:
    """Add the reference's answers for unknown paths and wrong methods, for an application that
    serves the optimizer alone."""
    for status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        app.register_error_handler(status, lambda _: no_route())


def _error_response(error: OptimizerError | WireError) -> Response:
    body = Problem(message=str(error))
    if isinstance(error, InvalidRequest):
        body["faults"] = [FaultAnswer(path=f.path, message=f.message) for f in error.faults]
    response = json_response(body, error.status)
    if isinstance(error, TooManyQuestions):
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response
