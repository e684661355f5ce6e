"""Renders every error as JSON. Nothing else does."""

import logging
from collections.abc import Callable

from flask import Flask, Response, g, jsonify, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from common.errors import (
    VERSION_HEADER,
    Error,
    MessagesError,
    WireError,
    error_body,
    is_of_messages,
    messages_error,
)
from common.web_pages import PageRefused
from inference_api.errors import HearthError, RequestTooLarge, UnknownEncoding

logger = logging.getLogger(__name__)


REFUSALS = dict.fromkeys((400, 404, 503), Error)  # for routes that take a model's name
ROW_REFUSALS = {**REFUSALS, 429: Error}  # for routes whose requests take a row


def register_error_handlers(app: Flask, on_error: Callable[[str], None]) -> None:
    """Register the handlers. `on_error` is called with the code of every rendered error."""

    @app.errorhandler(HearthError)
    @app.errorhandler(PageRefused)
    def answer_known(error: WireError) -> Response:
        on_error(error.code)
        logger.info("refused %r: %d %s", request.path, error.status, error.code)
        for_anthropic = messages_error(
            error.status, error.anthropic_message, g.request_id, error.anthropic_details
        )
        response = _response(error.body(), error.status, for_anthropic)
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(error.retry_after_s)
        if isinstance(error, UnknownEncoding):
            response.headers["Accept-Encoding"] = "gzip"  # RFC 9110, section 12.5.3
        if error.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    @app.errorhandler(RequestEntityTooLarge)
    def answer_too_large(error: RequestEntityTooLarge) -> Response:
        return answer_known(RequestTooLarge(app.config["MAX_CONTENT_LENGTH"]))

    @app.errorhandler(HTTPException)
    def answer_http(error: HTTPException) -> Response:
        status = error.code or 500
        code = error.name.lower().replace(" ", "_")
        on_error(code)
        remedy = "; /docs/ has the routes, and those of OpenAI begin with /v1" * (status == 404)
        if methods := ", ".join(sorted(getattr(error, "valid_methods", None) or ())):
            remedy = f"; send {methods}"
        message = f"{request.method} {request.path}: {error.name}{remedy}"
        for_anthropic = messages_error(status, message, g.request_id)
        response = _response(error_body(status, message, code), status, for_anthropic)
        if methods:
            response.headers["Allow"] = methods
        return response

    @app.errorhandler(Exception)
    def answer_unexpected(error: Exception) -> Response:
        logger.error("unexpected error at %s %s", request.method, request.path, exc_info=error)
        return answer_known(HearthError("Internal error; the server's log has the details."))


def _response(body: Error, status: int, for_anthropic: MessagesError) -> Response:
    is_anthropic = is_of_messages(request.path) or VERSION_HEADER in request.headers
    response = jsonify(for_anthropic if is_anthropic else body)
    response.status_code = status
    return response
