"""The HTTP routes of the weights service, as a blueprint that a composition root mounts.

Views run on request threads and share the service.
"""

from flask import Blueprint, Response, jsonify
from pydantic import BaseModel

from common.errors import StoreFailed, WireError
from common.http_routes import BodyTooLarge, HttpRoutes, Wire
from common.numerics import NotInstalled
from common.turns import TooManyQuestions
from weights.errors import Fault, InvalidRequest, WeightsError
from weights.routes.sessions import (
    SessionConverter,
    add_measure_routes,
    add_session_routes,
    add_update_routes,
)
from weights.service import WeightsService


def create_blueprint(service: WeightsService, max_body_bytes: int = 16 * 2**20) -> Blueprint:
    blueprint = Blueprint("weights", __name__)
    converters = {"session": SessionConverter}
    blueprint.record_once(lambda setup: setup.app.url_map.converters.update(converters))
    wire = Wire(
        max_body_bytes,
        "WEIGHTS_MAX_BODY_BYTES",
        bytes,
        lambda model, raw: model.parse(raw),
        json_response,
        lambda message, code: InvalidRequest([Fault(("body",), message, code)]),
    )
    http = HttpRoutes(blueprint, wire, merge_slashes=False)
    add_update_routes(http, service)
    add_session_routes(http, service)
    add_measure_routes(http, service)
    for kind in (WeightsError, StoreFailed, TooManyQuestions, BodyTooLarge, NotInstalled):
        blueprint.register_error_handler(kind, _error_response)
    return blueprint


def json_response(answer: BaseModel, status: int = 200) -> Response:
    text = answer.model_dump_json(exclude_unset=True)
    return Response(text, status, content_type="application/json")


def _error_response(error: WireError) -> Response:
    response = jsonify(error.body())
    response.status_code = error.status
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response
