"""Every refusal and failure of the proxy, with the status and code that a client sees.

`visits.Visits` turns them into answers; for malformed heads, `client.ClientConnection` does.
"""

import json
from math import ceil

from common import startup
from common.connections.answers import answer_head, content_headers
from common.errors import Error, MessagesError, WireError, is_of_messages, messages_error

Headers = list[tuple[str, str]]
NO_HEADERS: Headers = []  # never changed


class ProxyError(WireError):
    """Base class. `str(error)` is the message for the client; `reason` is for the log."""

    def __init__(self, message: str, *, reason: str = "", headers: Headers = NO_HEADERS) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.headers = headers

    def answer(
        self, request_id: str, target: str = "", more: Headers = NO_HEADERS
    ) -> tuple[Headers, bytes]:
        """Returns the header fields and the body, in the format of the target's API."""
        headers = [("X-Request-Id", request_id), *more]
        if self.retry_after_s is not None:
            headers.append(("Retry-After", f"{self.retry_after_s}"))
        shown: Error | MessagesError = self.body()
        if is_of_messages(target.partition("?")[0]):
            shown = messages_error(self.status, str(self), request_id)
            headers.append(("request-id", request_id))
        body = json.dumps(shown).encode()
        return content_headers("application/json", body) + self.headers + headers, body

    def last_answer(self, request_id: str) -> bytes:
        """Returns the whole answer to bytes that are no valid request."""
        headers, body = self.answer(request_id)
        return answer_head(self.status, headers, closes=True) + body


class _Reasoned(ProxyError):
    """An error with the same message for all reasons."""

    message: str

    def __init__(self, reason: str = "") -> None:
        super().__init__(self.message, reason=reason)


class BadRequest(ProxyError):
    """The request line or the body cannot be forwarded safely."""

    status = 400
    code = "invalid_request"


class Unauthorized(ProxyError):
    """The answer to every fault of a token. It names none, so that a guesser learns nothing."""

    status = 401
    code = "unauthorized"

    def __init__(self, reason: str, *, is_token_present: bool = True) -> None:
        # RFC 6750, section 3: no error code where no credentials were sent.
        code = ', error="invalid_token"' if is_token_present else ""
        headers = [("WWW-Authenticate", f'Bearer realm="hearth"{code}')]
        super().__init__("A valid Bearer token is required.", reason=reason, headers=headers)


class LoginNeeded(Unauthorized):
    """A browser asks for a page without a valid token. It is sent to the login."""

    status = 303

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.headers = [("Location", "/login")]


class ModelNotAllowed(ProxyError):
    status = 403
    code = "model_not_allowed"
    param = "model"

    def __init__(self, team_id: str, model: str | None) -> None:
        named = f"model '{model[:128]}'" if model else "a request that names no model"
        super().__init__(f"Team '{team_id}' may not use {named}; ask who keeps its policy.")


class RoleNeeded(ProxyError):
    status = 403
    code = "role_needed"

    def __init__(self, route: str, role: str, needed: str) -> None:
        super().__init__(
            f"{route} needs the role '{needed}' and this token has '{role}'; "
            "use a token of that role, or a team's routes: those of OpenAI begin with /v1."
        )


class OriginNotAllowed(ProxyError):
    status = 403
    code = "origin_not_allowed"


class UnknownRoute(ProxyError):
    status = 404
    code = "unknown_route"

    def __init__(self, method: str, path: str, known: str) -> None:
        super().__init__(f"{method} {path[:256]} is not known here; a team's routes are {known}.")


class BadMethod(ProxyError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, path: str, allowed: str) -> None:
        message = f"{method} {path[:256]}: Method Not Allowed; send {allowed}."
        super().__init__(message, headers=[("Allow", allowed)])


class ClientStalled(ProxyError):
    status = 408
    code = "request_timeout"


class BodyTooLarge(ProxyError):
    status = 413
    code = "request_too_large"


class NotAForm(ProxyError):
    status = 415
    code = "unsupported_media_type"


class ExpectationFailed(ProxyError):
    status = 417
    code = "expectation_failed"

    def __init__(self, expectation: str) -> None:
        super().__init__(f"Expect: {expectation!r} is not known here; only 100-continue is.")


class LimitExceeded(ProxyError):
    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, code: str, headers: Headers) -> None:
        super().__init__(message, headers=headers)
        self.code = code


class HeadTooLarge(ProxyError):
    status = 431
    code = "request_head_too_large"


class ClientGone(_Reasoned):
    """The client has left. No answer is sent; this is for the audit line only."""

    status = 499
    code = "client_gone"
    message = "The client went away."


class UpstreamUnreachable(_Reasoned):
    status = 502
    code = "upstream_unreachable"
    message = "No inference server is reachable, try again later."


class NoSuchModel(UpstreamUnreachable):
    status = 404
    code = "model_not_found"
    param = "model"
    message = "model: no server here has it; name one that GET /v1/models lists."


class UpstreamBroken(_Reasoned):
    status = 502
    code = "upstream_broken"
    message = "The inference server broke off before it answered."


class UpstreamClosed(UpstreamBroken):
    """No byte of an answer came, so a request that changes nothing may be sent again."""


class _ComeAgain(_Reasoned):
    """A 503 that says after how many seconds to try again."""

    status = 503
    retry_after_s = 1


class UpstreamNotReady(_ComeAgain):
    code = "upstream_not_ready"
    retry_after_s = 5
    message = "No inference server is ready, try again later."


class Overloaded(_ComeAgain):
    """PROXY_REQUESTS or PROXY_CONNECTIONS is reached."""

    code = "overloaded"
    message = "The proxy is overloaded, try again later."


class AllRowsBusy(_ComeAgain):
    """No row is free. The balancer makes a request wait by this; a client gets it in the end."""

    code = "all_rows_busy"
    message = "All user rows are busy, try again later."


class ServerStarting(_ComeAgain):
    """The server's first replica is not ready in time, but in `ready_in_s`, if that is known."""

    code = "server_starting"
    message = "The server of this model is being started, try again later."

    def __init__(self, ready_in_s: float | None) -> None:
        usual_s = UpstreamNotReady.retry_after_s
        self.retry_after_s = usual_s if ready_in_s is None else max(ceil(ready_in_s), 1)
        super().__init__(f"it has a replica in {self.retry_after_s} s; raise QUEUE_TIMEOUT to wait")


class Draining(_ComeAgain):
    code = "draining"
    message = "The proxy is about to stop, try again."


class UpstreamTimeout(ProxyError):
    status = 504
    code = "upstream_timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The inference server sent no first byte within {timeout_s:g} s.")


class StreamBroken(Exception):
    """The upstream cut an answer whose head has already been sent."""


class DiscoveryFailed(Exception):
    """The list of replicas cannot be had. `is_gone`: the requested version is too old."""

    def __init__(self, message: str, *, is_gone: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone


class StartupError(startup.StartupError):
    service = "The proxy"
