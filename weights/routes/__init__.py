"""The weights service over HTTP, as a blueprint that a composition root mounts.

Views run on request threads; what they share is the service they are given.
"""

from flask import Blueprint, Response

from common.errors import StoreFailed, WireError
from common.turns import TooManyQuestions
from weights.errors import WeightsError
from weights.routes.answers import Problem
from weights.routes.http import Http, json_response
from weights.routes.sessions import add_measure_routes, add_session_routes
from weights.routes.updates import add_update_routes
from weights.service import WeightsService


def create_blueprint(service: WeightsService, max_body_bytes: int = 16 * 2**20) -> Blueprint:
    blueprint = Blueprint("weights", __name__)
    http = Http(blueprint, max_body_bytes)
    add_update_routes(http, service)
    add_session_routes(http, service)
    add_measure_routes(http, service)
    for kind in (WeightsError, StoreFailed, TooManyQuestions):
        blueprint.register_error_handler(kind, _error_response)
    return blueprint


def _error_response(error: WireError) -> Response:
    response = json_response(Problem.of(error), error.status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response
