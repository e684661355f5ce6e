"""Errors as clients see them, in the API's words and in OpenAI's.

    WireError
    └── StoreFailed   503   the store did not take or give the data; nothing is half written

The errors of each service that answers in this shape have WireError as their base.
"""

from typing_extensions import TypedDict  # pydantic describes typing's from Python 3.12 on

_TYPES = {
    303: "authentication_error",  # to the login: what is 401 to anyone but a browser
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class ErrorDetail(TypedDict):
    """OpenAI's shape of an error."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """An error as clients see it: two documented keys, and `error` for OpenAI clients."""

    status_code: int
    message: str
    error: ErrorDetail


class WireError(Exception):
    """`str(error)` is the message for the client."""

    status = 500
    code = "internal_error"
    param: str | None = None

    @property
    def type(self) -> str:
        """OpenAI's kind of error, which follows from the status."""
        return error_type(self.status)

    def body(self) -> Error:
        return error_body(self.status, str(self), self.code, self.param)


class StoreFailed(WireError):
    status = 503
    code = "store_failed"


def error_body(status: int, message: str, code: str, param: str | None = None) -> Error:
    detail = ErrorDetail(message=message, type=error_type(status), param=param, code=code)
    return Error(status_code=status, message=message, error=detail)


def error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
