"""A request's caller: its id, the team that the proxy named, and the body sent.

Every response carries an `X-Request-Id`: the client's own where it is usable, else a new one.
Clients of `/v1/messages` look for it as `request-id`.
"""

from flask import Flask, Response, g, request

from common.errors import is_of_messages
from common.request_ids import request_id, usable_request_id
from inference_api.errors import InvalidRequest
from inference_api.observe.telemetry import TRACE_HEADERS
from inference_api.request import Caller


def register_request_ids(app: Flask) -> None:
    @app.before_request
    def take_request_id() -> None:
        g.request_id = usable_request_id(request.headers.get("X-Request-Id", ""))
        request_id.set(g.request_id)

    @app.after_request
    def echo_request_id(response: Response) -> Response:
        response.headers["X-Request-Id"] = g.request_id
        if is_of_messages(request.path):
            response.headers["request-id"] = g.request_id
        return response


def caller_of_request() -> Caller:
    """Returns the caller of the request that this thread is answering."""
    team_id = request.headers.get("X-Team-Id")  # set by the proxy, which strips its clients' own
    trace_context = {
        name: request.headers[name] for name in TRACE_HEADERS if name in request.headers
    }
    assert request.url_rule is not None
    return Caller(
        g.request_id,
        team_id,
        request.url_rule.rule,
        request.environ.get("gunicorn.socket"),
        trace_context,
    )


def json_body() -> bytes:
    """The body of this request. Raises InvalidRequest when it is not declared to be JSON."""
    if not request.is_json:
        raise InvalidRequest("Request was not JSON")
    return request.get_data(cache=False)
