"""Refusals of requests that were never complete."""

from gunicorn.http.errors import (
    ExpectationFailed,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
    UnsupportedTransferCoding,
)
from werkzeug.exceptions import ClientDisconnected

from common.errors import WireError

BODY_FAULTS = (ParseException, OSError, ClientDisconnected)
"""Errors in reading a body that its client cut short or malformed, from gunicorn and werkzeug. Any
other error is a bug."""

STATUSES: dict[type[ParseException], int] = {
    LimitRequestLine: 414,
    ExpectationFailed: 417,
    LimitRequestHeaders: 431,
    UnsupportedTransferCoding: 501,
}
MAX_MESSAGE_CHARS = 200  # characters of gunicorn's message, which quotes the client


class InvalidHead(WireError):
    code = "invalid_request_head"

    def __init__(self, error: ParseException) -> None:
        self.status = STATUSES.get(type(error), 400)
        super().__init__(
            f"The request's head is refused: {str(error)[:MAX_MESSAGE_CHARS]}; send it as HTTP/1.1 "
            "asks (RFC 9112), and shorter if it is too large."
        )


class RequestTimeout(WireError):
    status = 408
    code = "request_timeout"

    def __init__(self, head_s: float, body_s: float, body_bytes_per_s: int) -> None:
        super().__init__(
            f"The request did not arrive in time: a head may take {head_s:g} s, a body {body_s:g} "
            f"s plus 1 s for every {body_bytes_per_s} bytes; send it faster."
        )


class TooManyConnections(WireError):
    status = 503
    code = "too_many_connections"
    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__(
            "Too much is being sent at once and this request was not complete yet, try again later."
        )
