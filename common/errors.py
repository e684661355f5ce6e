"""Errors as clients see them, in Hearth's format, OpenAI's and, at `/v1/messages`, Anthropic's.

WireError is the base class of the errors of all services that answer in these formats.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic describes typing's from Python 3.12 on

MESSAGES_PATH = "/v1/messages"
VERSION_HEADER = "anthropic-version"  # sent by all clients of Anthropic and by no others

_TYPES = {
    303: "authentication_error",  # redirects a browser to the login; others get 401
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_TYPES_OF_MESSAGES = _TYPES | {
    404: "not_found_error",
    413: "request_too_large",
    502: "overloaded_error",
    503: "overloaded_error",  # Anthropic uses status 529, which load balancers do not know
    504: "timeout_error",
}


class ErrorDetail(TypedDict):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """An error in Hearth's format: two documented keys, and `error` for OpenAI's clients."""

    status_code: int
    message: str
    error: ErrorDetail


class MessagesErrorDetail(TypedDict):
    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class MessagesError(TypedDict):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: MessagesErrorDetail
    request_id: str


class WireError(Exception):
    """Base class of errors for clients. `str(error)` is the message."""

    status = 500
    code = "internal_error"
    param: str | None = None
    retry_after_s: int | None = None
    anthropic_details: Mapping[str, Any] | None = None  # tells Anthropic's clients what to do

    @property
    def anthropic_message(self) -> str:
        """The message for clients of Anthropic."""
        return str(self)

    def body(self) -> Error:
        return error_body(self.status, str(self), self.code, self.param)


class StoreFailed(WireError):
    status = 503
    code = "store_failed"


def error_body(status: int, message: str, code: str, param: str | None = None) -> Error:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    detail = ErrorDetail(message=message, type=kind, param=param, code=code)
    return Error(status_code=status, message=message, error=detail)


def is_of_messages(path: str) -> bool:
    """Returns whether clients of a path expect errors in Anthropic's format."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def messages_error(
    status: int, message: str, request_id: str, details: Mapping[str, Any] | None = None
) -> MessagesError:
    kind = _TYPES_OF_MESSAGES.get(status, "invalid_request_error" if status < 500 else "api_error")
    detail = MessagesErrorDetail(type=kind, message=message)
    if details is not None:
        detail["details"] = dict(details)
    return MessagesError(type="error", error=detail, request_id=request_id)
