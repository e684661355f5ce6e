"""The request as the proxy received it: what to forward, and what routing needs to know.

Built on a request thread from gunicorn's environ; immutable but for the body, which is read once.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import unquote

from gunicorn.http.errors import NoMoreData, ParseException

from proxy.errors import BadRequest, BodyTooLarge, ClientGone, ClientStalled

# What is read of a body before an upstream is chosen: enough for a prompt of some 60 000 tokens.
# A body up to this size is inspected and can be sent again to another upstream; beyond it the
# rest is streamed through.
INSPECTED_BYTES = 256 * 1024
READ_BYTES = 64 * 1024
# The characters of a prompt that decide its replica: long enough to tell system prompts apart,
# short enough that a growing conversation keeps its place.
AFFINITY_CHARS = 256
# The native routes name the model in their path.
MODEL_ROUTES = ("inference", "predictions", "chat")

Environ = dict[str, Any]


class RequestBody:
    """A request's body: its first part in memory, the rest still at the client.

    Request thread only.
    """

    def __init__(
        self,
        environ: Environ,
        max_bytes: int,
        timeout_s: float,
        remedy: str = "send less, or have MAX_CONTENT_LENGTH raised",
    ) -> None:
        """Reads the first part. Raises BodyTooLarge, BadRequest, ClientStalled or ClientGone."""
        self._source: IO[bytes] = environ["wsgi.input"]
        self._client = environ.get("gunicorn.socket")
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._remedy = remedy
        length = environ.get("CONTENT_LENGTH") or ""
        self.length = int(length) if length else None
        self.is_chunked = "HTTP_TRANSFER_ENCODING" in environ
        self.num_read_bytes = 0
        if self.length is not None and self.length > max_bytes:
            raise self._too_large()
        self.prefix = self._read(INSPECTED_BYTES) if self.length or self.is_chunked else b""
        self.is_complete = (
            len(self.prefix) < INSPECTED_BYTES
            if self.is_chunked
            else len(self.prefix) == (self.length or 0)
        )

    @property
    def is_present(self) -> bool:
        return self.length is not None or self.is_chunked

    def rest(self) -> Iterator[bytes]:
        """What follows the prefix, in pieces. May be iterated once."""
        while piece := self._read(READ_BYTES):
            yield piece

    def _read(self, size: int) -> bytes:
        if self._client is not None:
            self._client.settimeout(self._timeout_s)
        try:
            piece = self._source.read(size)
        except TimeoutError:
            raise ClientStalled(self._timeout_s) from None
        except NoMoreData:
            raise ClientGone("the client closed in the middle of its body") from None
        except (OSError, ParseException) as error:
            raise BadRequest("The request body is malformed.", reason=repr(error)) from error
        finally:
            if self._client is not None:
                self._client.settimeout(None)
        self.num_read_bytes += len(piece)
        if self.num_read_bytes > self._max_bytes:
            raise self._too_large()
        if self.length is not None and len(piece) < min(
            size, self.length - self.num_read_bytes + len(piece)
        ):
            raise ClientGone("the client closed in the middle of its body")
        return piece

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The request body exceeds {self._max_bytes} bytes; {self._remedy}.")


@dataclass(frozen=True, slots=True)
class RoutingHints:
    """What a request says about where it should go. All None for bodies that are not JSON."""

    model: str | None = None
    affinity_key: str | None = None


@dataclass(frozen=True, slots=True)
class InboundRequest:
    """One request, ready to be forwarded."""

    method: str
    target: str  # the request line's own, still percent-encoded
    environ: Environ
    body: RequestBody
    hints: RoutingHints


def target_fault(method: str, target: str) -> str | None:
    """Why a request line is not forwarded; None when it names a path of ours.

    The absolute form names a host of the client's choice and is meant for forward proxies;
    CONNECT asks for a tunnel, TRACE for our own headers back. None has any business here.
    """
    if method in ("CONNECT", "TRACE"):
        return f"Method {method} is not forwarded."
    is_server_wide = target == "*" and method == "OPTIONS"
    if is_server_wide or (target.startswith("/") and "#" not in target):
        return None
    return "The request target must be a path."


def read_hints(target: str, environ: Environ, body: RequestBody) -> RoutingHints:
    """Model, session and prompt of a JSON body; the native routes' model from the path only.

    Those routes do not look for a model in the body, so one named there must not count.
    """
    # Decoded before it is split, as the server behind us does: otherwise `/inference%2Fx` would
    # be another model to us than to it.
    parts = [part for part in unquote(target.partition("?")[0]).split("/") if part]
    is_native = bool(parts) and parts[0] in MODEL_ROUTES
    fields = _json_fields(environ, body) or {}
    model = (parts[1] if len(parts) > 1 else None) if is_native else fields.get("model")
    return RoutingHints(
        model=model if isinstance(model, str) else None, affinity_key=_affinity_key(fields)
    )


def _json_fields(environ: Environ, body: RequestBody) -> dict[str, Any] | None:
    content_type = str(environ.get("CONTENT_TYPE", "")).lower()
    if "json" not in content_type or not body.is_complete or not body.prefix:
        return None
    try:
        fields = json.loads(body.prefix)
    except (ValueError, RecursionError):
        return None  # the upstream says what is wrong with it, better than we could
    return fields if isinstance(fields, dict) else None


def _affinity_key(fields: dict[str, Any]) -> str | None:
    """The session, or what a conversation begins with, which stays the same as it grows."""
    session_id = fields.get("session_id")
    if isinstance(session_id, str) and session_id:
        return f"session:{session_id}"
    for name in ("text", "prompt", "messages", "input"):
        if value := fields.get(name):
            return f"prompt:{_beginning(value)[:AFFINITY_CHARS]}"
    return None


def _beginning(value: object) -> str:
    """The first text of a prompt: for messages, up to and with the first one of the user."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    texts = []
    for message in value:
        if not isinstance(message, dict):
            return str(value[0])
        texts.append(str(message.get("content")))
        if message.get("role") == "user":
            break
    return "\n".join(texts)
