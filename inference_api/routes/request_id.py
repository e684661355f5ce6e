"""Gives every response an `X-Request-Id`: the client's own where it is usable, else a new one."""

import re
import uuid

from flask import Flask, Response, g, request

USABLE_ID = re.compile(r"[!-~]{1,128}")


def register_request_ids(app: Flask) -> None:
    @app.before_request
    def take_request_id() -> None:
        given = request.headers.get("X-Request-Id", "")
        g.request_id = given if USABLE_ID.fullmatch(given) else uuid.uuid4().hex

    @app.after_request
    def echo_request_id(response: Response) -> Response:
        response.headers["X-Request-Id"] = g.request_id
        return response
