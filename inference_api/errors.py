"""Every error of the inference API, with the HTTP status and code that clients see.

Raise them anywhere: `web.errors` makes responses of them. It does the same for RequestTimeout and
TooManyConnections of `common.connections`, and PageRefused of `common.web_pages`.
"""

from collections.abc import Sequence

from common import startup
from common.errors import WireError

NAMES_SHOWN = 5
MAX_NAME_CHARS = 256  # more of a name is not shown, as no model has a longer one


class HearthError(WireError):
    """Base class of these errors. `str(error)` is the message for the client."""


class InvalidRequest(HearthError):
    """A field is missing, mistyped or out of bounds."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextTooLong(InvalidRequest):
    """Clients look for OpenAI's or Anthropic's words in its message, then shorten the history."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, max_seq_len: int, detail: str = "") -> None:
        detail = (
            detail or f"of which at least one is for the answer, and the prompt has {prompt_tokens}"
        )
        super().__init__(
            f"This model's maximum context length is {max_seq_len} tokens, {detail}; shorten the "
            "prompt.",
            param="text",
        )
        self._prompt_tokens = prompt_tokens
        self._max_prompt_tokens = max_seq_len - 1

    @property
    def anthropic_message(self) -> str:
        sizes = f"{self._prompt_tokens} tokens > {self._max_prompt_tokens} maximum"
        return f"prompt is too long: {sizes}; shorten it."


class PromptTooLong(ContextTooLong):
    """The prompt has more bytes, or another `unit`, than `at_most`, which the context can hold."""

    def __init__(self, size: int, unit: str, at_most: int, max_seq_len: int) -> None:
        at_least_tokens = -(-size * max_seq_len // at_most)
        detail = f"which hold at most {at_most} {unit}, and the prompt has {size}"
        super().__init__(at_least_tokens, max_seq_len, detail)


class ThreadUnserved(InvalidRequest):
    """Threads are not supported. Anthropic's clients try them, and do without after this error."""

    def __init__(self) -> None:
        super().__init__("thread: nothing is kept between calls; send all messages.", "thread")
        self.anthropic_details = {
            "error_code": "thread_unsupported_request",
            "unsupported": ["thread"],
        }


class ConstraintFailed(InvalidRequest):
    """Raised during generation, for example if only an endless answer satisfies the constraint."""

    code = "constraint_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The answer cannot go on under its constraint; simplify it: {reason}")


class Unauthorized(HearthError):
    status = 401
    code = "unauthorized"


class UnknownModel(HearthError):
    status = 404
    code = "model_not_found"

    def __init__(self, name: str, served: Sequence[str]) -> None:
        # A client whose base URL lacks /v1 requests /chat/completions.
        remedy = " OpenAI's routes begin with /v1." * (name == "completions")
        model = f"Model '{name[:MAX_NAME_CHARS]}'"
        super().__init__(f"{model} is not served here; served: {', '.join(served)}.{remedy}")
        self.param = "model"


class NoBundle(HearthError):
    status = 404
    code = "no_bundle"

    def __init__(self, is_mock: bool = False) -> None:
        super().__init__(
            "The mock backend knows a bundle's experts only by name; start a server without a mock."
            if is_mock
            else "This server has no bundle of experts; start it with BUNDLE."
        )


class NoCluster(HearthError):
    status = 404
    code = "no_cluster"

    def __init__(self) -> None:
        super().__init__("This server has no cluster; start it with CLUSTER_URL.")


class UnloadRefused(HearthError):
    """A member of the bundle has to stay in memory."""

    status = 409
    code = "unload_refused"


class MemberPinned(UnloadRefused):
    code = "expert_pinned"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is pinned; the bundle's file says so.")


class MemberLoading(UnloadRefused):
    code = "expert_loading"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is loading; unload it once it is resident.")


class MemberBusy(UnloadRefused):
    code = "expert_busy"

    def __init__(self, name: str, num_running: int, num_waiting: int) -> None:
        super().__init__(
            f"{name}: {num_running} running, {num_waiting} waiting; drain it, or force it to end "
            "those that run."
        )


class RequestTooLarge(HearthError):
    status = 413
    code = "request_too_large"

    def __init__(self, max_bytes: int, is_compressed: bool = False) -> None:
        body = "decompressed body" if is_compressed else "body"
        super().__init__(
            f"The request {body} exceeds {max_bytes} bytes; send less or raise MAX_CONTENT_LENGTH."
        )


class UnknownEncoding(HearthError):
    status = 415
    code = "unsupported_content_encoding"

    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"The body is declared as Content-Encoding: {encoding[:255]!r}; send gzip, or the body "
            "as it is and no such header."
        )


class Unavailable(HearthError):
    status = 503
    code = "unavailable"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(Unavailable):
    code = "queue_full"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("Service overloaded, try again later.", retry_after_s)


class MemberQueueFull(QueueFull):
    status = 429

    def __init__(self, name: str, num_waiting: int, retry_after_s: int) -> None:
        Unavailable.__init__(self, f"{name}: {num_waiting} waiting", retry_after_s)


class MemberFailed(Unavailable):
    """An expert did not load. It is tried again once a weight file changes or an operator asks."""

    code = "expert_failed"

    def __init__(self, name: str, reason: str, retry_after_s: int) -> None:
        super().__init__(f"{name} failed: {reason}", retry_after_s)


class MemberUnloaded(Unavailable):
    """An expert was unloaded while it answered."""

    code = "expert_unloaded"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was unloaded by an operator; ask again.", retry_after_s=1)


class NotReady(Unavailable):
    code = "not_ready"


class Draining(Unavailable):
    code = "draining"


class BackendFailed(HearthError):
    """The decode thread died."""

    code = "backend_failed"


class StartupError(startup.StartupError):
    service = "Hearth"


def shown(names: Sequence[str]) -> str:
    """Returns the first NAMES_SHOWN names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
