"""Refusals of requests that did not become whole.

WireError
├── RequestTimeout       408   the client takes too long to send its request
└── TooManyConnections   503   this one had waited longest, or held the most bytes
"""

from common.errors import WireError


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
