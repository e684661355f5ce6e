"""A request's caller: its id, the team that the proxy names, and the body.

Every response carries an `X-Request-Id`: the client's own if it is usable, else a new one. Clients
of `/v1/messages` read it as `request-id`.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from flask import Flask, Response, current_app, g, request

from common.errors import is_of_messages
from common.logs import request_id, usable_request_id
from inference_api.errors import InvalidRequest
from inference_api.request import Caller
from inference_api.web.fields import Body, parse
from inference_api.web.left_aside import LeftAside, ReadingRules

TRACE_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context
RULES = "READING_RULES"  # key of the ReadingRules in app.config

B = TypeVar("B", bound=Body)


def register_requests(app: Flask, rules: ReadingRules, on_ignored: Callable[[str], None]) -> None:
    """Give every request an id, and set the rules for bodies. `on_ignored` is called with the name
    of every field that was ignored."""
    app.config[RULES] = rules

    @app.before_request
    def begin_request() -> None:
        g.left_aside = {}
        g.request_id = usable_request_id(request.headers.get("X-Request-Id", ""))
        request_id.set(g.request_id)

    @app.after_request
    def add_headers(response: Response) -> Response:
        if g.left_aside:
            response.headers["X-Hearth-Ignored"] = ", ".join(g.left_aside)
            for counted_as in g.left_aside.values():
                on_ignored(counted_as)
        response.headers["X-Request-Id"] = g.request_id
        if is_of_messages(request.path):
            response.headers["request-id"] = g.request_id
        return response


def caller_of_request() -> Caller:
    """Returns the caller of the request that this thread is answering."""
    team_id = request.headers.get("X-Team-Id")  # set by the proxy, which removes clients' own
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
        tuple(g.left_aside),
    )


def read(kind: type[B], parsed: Callable[..., B] = parse, model: str | None = None) -> B:
    """Returns this request's body, and reports the fields that it ignores. A `model` from the path
    takes the place of the body's. Raises InvalidRequest."""
    aside = LeftAside(kind, current_app.config[RULES])
    body = parsed(kind, json_body(), aside)
    leave_aside(aside.paths)
    return body if model is None else body.model_copy(update={"model": model})


def read_strictly(kind: type[B]) -> B:
    """Returns this request's body, in which no field may be unknown. Raises InvalidRequest."""
    return parse(kind, json_body(), LeftAside(kind, ReadingRules(refuses_unknown=True)))


def leave_aside(fields: Mapping[str, str]) -> None:
    """Note ignored fields of this request, to be reported. For `fields` see `LeftAside.paths`."""
    g.left_aside |= fields


def json_body() -> bytes:
    """Returns the body of this request. Raises InvalidRequest if it is not declared as JSON."""
    if request.is_json:
        return request.get_data(cache=False)
    message = "Request was not JSON"  # as the reference says, which has none of these routes
    if request.path.startswith(("/v1/", "/openai/")):  # `curl -d` declares a form
        message += f": its Content-Type is {request.mimetype[:255]!r}; send application/json."
    raise InvalidRequest(message)
