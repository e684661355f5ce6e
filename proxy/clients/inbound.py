"""The request as the proxy received it: what to forward, and what routing needs to know."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from pydantic_core import from_json

from proxy.clients.request_head import RequestHead
from proxy.clients.usage_question import may_ask
from proxy.errors import BadRequest, BodyTooLarge, ProxyError

# What is read of a body before an upstream is chosen: enough for a prompt of some 60 000 tokens.
# A body up to this size is inspected and can be sent again to another upstream; beyond it the
# rest is streamed through.
INSPECTED_BYTES = 256 * 1024
# Decompressed, it is inspected up to the same size: what is not read here has no model here, and a
# team that may ask for some models only is refused, as with any other encoding.
GZIP = ("gzip", "x-gzip")
GZIP_ONLY = zlib.MAX_WBITS | 16  # zlib's flag for a gzip header
# The characters of a prompt, or of a session's name, that decide its replica: long enough to tell
# system prompts apart, short enough that a growing conversation keeps its place.
AFFINITY_CHARS = 256
SESSION = "session:"
# The native routes name the model in their path.
MODEL_ROUTES = ("inference", "predictions", "chat")
# What answers with tokens, and so takes a user row.
GENERATING_ROUTES = frozenset(
    {
        *MODEL_ROUTES,
        "v1/completions",
        "v1/chat/completions",
        "v1/embeddings",
        "v1/messages",
        "v1/responses",
    }
)


REMEDY = "send less, or have MAX_CONTENT_LENGTH raised"


class BodySource(Protocol):
    """The connection that a body comes from."""

    def set_reading(self, is_reading: bool) -> None: ...

    def invite_body(self) -> None:
        """Tell a client that asks first that its body is wanted."""


class RequestBody:
    """A request's body: what has come of it, fed by its connection and read by its request. Event
    loop only."""

    def __init__(self, head: RequestHead, source: BodySource) -> None:
        self.length = head.content_length
        self.is_chunked = head.is_chunked
        self.is_empty = not self.is_chunked and not self.length
        self.is_ended = self.is_empty
        self.is_complete = self.is_empty  # the prefix is all of it, so that it can be sent again
        self.num_read_bytes = 0
        self.prefix = b""
        self.is_held_back = False  # enough is here for now
        self._source = source
        self._is_invited = not head.expects_continue
        self._error: ProxyError | None = None
        self._pieces: list[bytes] = []
        self._num_held_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_present(self) -> bool:
        return self.length is not None or self.is_chunked

    def feed(self, piece: bytes) -> None:
        """Takes a piece from the connection, which stops reading while more is held than wanted."""
        self.num_read_bytes += len(piece)
        self._num_held_bytes += len(piece)
        self._pieces.append(piece)
        if self._num_held_bytes > INSPECTED_BYTES:
            self._hold_back(True)
        self._wake()

    def fail(self, error: ProxyError) -> None:
        """Called by the connection: the rest will not come."""
        self._error = error
        self._wake()

    def end(self) -> None:
        """Called by the connection: the body is whole."""
        self.is_ended = True
        self._wake()

    async def read_prefix(self, max_bytes: int, remedy: str = REMEDY) -> None:
        """Wait for the first INSPECTED_BYTES, or for all of it. Raises BodyTooLarge."""
        _check_size(self.length or 0, max_bytes, remedy)
        while not self.is_ended and self._num_held_bytes < min(INSPECTED_BYTES, max_bytes + 1):
            await self._wait()
        _check_size(self.num_read_bytes, max_bytes, remedy)
        self.prefix = self._take()
        self.is_complete = self.is_ended and len(self.prefix) <= INSPECTED_BYTES

    async def rest(self, max_bytes: int) -> AsyncIterator[bytes]:
        """Yields the pieces after the prefix, once. Raises BodyTooLarge."""
        while True:
            while not self._pieces and not self.is_ended:
                await self._wait()
            _check_size(self.num_read_bytes, max_bytes, REMEDY)
            if not self._pieces:
                return
            yield self._take()

    def _take(self) -> bytes:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._num_held_bytes = 0
        self._hold_back(False)  # also behind its end, or the client's leaving would go unnoticed
        return data

    def _hold_back(self, is_held_back: bool) -> None:
        if self.is_held_back is not is_held_back:
            self.is_held_back = is_held_back
            self._source.set_reading(not is_held_back)

    async def _wait(self) -> None:
        """For more of it, or its end. Raises what the connection failed with."""
        if self._error is not None:
            raise self._error
        if not self._is_invited:
            self._is_invited = True
            self._source.invite_body()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _check_size(num_bytes: int, max_bytes: int, remedy: str) -> None:
    if num_bytes > max_bytes:
        raise BodyTooLarge(f"The request body exceeds {max_bytes} bytes; {remedy}.")


class RoutingHints(NamedTuple):
    """What is read of a JSON body, mostly what decides where it goes. Other bodies have none."""

    model: str | None = None
    affinity_key: str | None = None
    may_ask_usage: bool = False  # in the client's stead
    route_key: str = ""  # decides between the servers of a route

    def routed(self, team_id: str, request_id: str) -> "RoutingHints":
        """A team's session stays with the server that it has met; without one it is chance."""
        is_session = (self.affinity_key or "").startswith(SESSION)
        own_key = self.affinity_key if is_session else request_id
        return self._replace(route_key=f"{team_id}\0{own_key}")


class InboundRequest(NamedTuple):
    """One request, ready to be forwarded."""

    head: RequestHead
    body: RequestBody
    hints: RoutingHints
    team_id: str
    takes_row: bool


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


def takes_row(method: str, path: str) -> bool:
    """Whether a plain path is one that answers with tokens."""
    first, _, rest = path.strip("/").partition("/")
    return method == "POST" and (
        first in GENERATING_ROUTES or f"{first}/{rest}" in GENERATING_ROUTES
    )


def read_hints(head: RequestHead, body: RequestBody) -> RoutingHints:
    """Model, session and prompt of a JSON body; the native routes' model from the path only. Those
    routes do not look for a model in the body, so one named there must not count. Raises BadRequest
    for a model that servers written in Go would read, and others would not."""
    if head.method == "GET" and body.is_empty:
        return RoutingHints()
    # Decoded before it is split, as the server behind us does: otherwise `/inference%2Fx` would
    # be another model to us than to it.
    parts = [part for part in unquote(head.target.partition("?")[0]).split("/") if part]
    is_native = bool(parts) and parts[0] in MODEL_ROUTES
    fields = _json_fields(head, body) or {}
    is_openai = parts[:1] == ["v1"]
    if is_openai and any(name != "model" and name.lower() == "model" for name in fields):
        raise BadRequest("The body has a 'model' in capitals, which some servers read; send one.")
    model = ("/".join(parts[1:]) or None) if is_native else fields.get("model")
    return RoutingHints(
        model=model if isinstance(model, str) else None,
        affinity_key=_affinity_key(fields),
        may_ask_usage="content-encoding" not in head and may_ask(head.target, body.prefix, fields),
    )


def _json_fields(head: RequestHead, body: RequestBody) -> dict[str, Any] | None:
    content_type = head.get("content-type", "").lower()
    if "json" not in content_type or not body.is_complete or not body.prefix:
        return None
    try:
        fields = parsed(_decoded(head, body.prefix))
    except (ValueError, RecursionError):
        return None  # the upstream says what is wrong with it, better than we could
    return fields if isinstance(fields, dict) else None


def parsed(data: bytes) -> object:
    """Does what `json.loads` does, which alone reads UTF-16 and half a surrogate pair, sooner."""
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data)


def num_inspected_bytes(head: RequestHead, body: RequestBody) -> int:
    """Returns the size of the body as the upstream will read it; INSPECTED_BYTES if unknown."""
    try:
        return len(_decoded(head, body.prefix))
    except ValueError:
        return INSPECTED_BYTES


def _decoded(head: RequestHead, prefix: bytes) -> bytes:
    """What the upstream will read of a whole body. Raises ValueError where that is not known:
    another encoding, or gzip that is damaged, or too large once it is decompressed."""
    encoding = head.get("content-encoding", "").strip().lower() or "identity"
    if encoding == "identity":
        return prefix
    if encoding not in GZIP:
        raise ValueError(encoding)
    decompressor = zlib.decompressobj(GZIP_ONLY)
    try:
        content = decompressor.decompress(prefix, INSPECTED_BYTES + 1)
    except zlib.error as error:
        raise ValueError("no gzip") from error
    if len(content) > INSPECTED_BYTES or not decompressor.eof or decompressor.unused_data:
        raise ValueError("not one gzip member of this size")
    return content


def _affinity_key(fields: dict[str, Any]) -> str | None:
    """The session, OpenAI's name of what may share a prefix, or what a conversation begins with,
    which stays the same as it grows."""
    for name, kind in (("session_id", SESSION), ("prompt_cache_key", "cache:")):
        named = fields.get(name)
        if isinstance(named, str) and named:
            return f"{kind}{named[:AFFINITY_CHARS]}"
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
            # Ids of one prompt's tokens, or the first of several prompts.
            return str(value[:AFFINITY_CHARS] if isinstance(message, int) else value[0])
        texts.append(str(message.get("content")))
        if message.get("role") == "user":
            break
    return "\n".join(texts)
