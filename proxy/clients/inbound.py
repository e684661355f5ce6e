"""The request as the proxy received it: what to forward, and what routing needs to know."""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from pydantic_core import from_json

from proxy.clients.request_head import RequestHead
from proxy.errors import BadRequest, BodyTooLarge, ProxyError

# A body that is read whole before an upstream is chosen is inspected, and can be sent again to
# another upstream. Every body may have INSPECTED_BYTES, enough for a prompt of some 60,000 tokens,
# and JSON up to LONG_BYTES, from room that all long bodies share. Others are streamed through from
# there on.
INSPECTED_BYTES = 256 * 1024
LONG_BYTES = 4 * 1024 * 1024
ROOM_BYTES = 32 * LONG_BYTES
# Reading more lists and objects than this would hold up other requests for more than 50 ms. Those
# in texts count, too. OpenAI's SDKs send the messages first, and the model behind them.
MAX_CONTAINERS = 400_000
# A compressed body is inspected up to LONG_BYTES after decompression, and to so many times its own
# size, or it would cost much to read and little to send. A body that cannot be read here, as in
# other encodings, names no model, and is refused to a team with a list of models.
MAX_RATIO = 8
GZIP = ("gzip", "x-gzip")
GZIP_ONLY = zlib.MAX_WBITS | 16  # zlib's flag for a gzip header
# Characters of a prompt, or of a session's name, that decide its replica: enough to tell system
# prompts apart, few enough that a growing conversation keeps its replica.
AFFINITY_CHARS = 256
SESSION = "session:"
# The native routes name the model in their path.
MODEL_ROUTES = ("inference", "predictions", "chat")
# So do OpenAI's routes as Azure's clients call them, whatever model the body names.
_DEPLOYMENT = re.compile(r"(?s:/openai/deployments/(.+?))(/(?:chat/)?completions|/embeddings)/?\Z")
# Routes whose requests take a user row.
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
# OpenAI's streams report usage in a separate event, if they are asked for it. The proxy asks on the
# client's behalf, and hides the event from a client that did not.
USAGE_ROUTES = frozenset({"/v1/completions", "/v1/chat/completions"})
_USAGE_QUESTION = b'{"stream_options":{"include_usage":true},'


class BodySource(Protocol):
    """The connection that a body comes from."""

    def set_reading(self, is_reading: bool) -> None: ...

    def invite_body(self) -> None:
        """Tells a client that waits for "100 Continue" to send the body."""


class BodyRoom:
    """Bytes that long bodies may hold together until their upstreams answer. Event loop only."""

    def __init__(self, num_bytes: int = ROOM_BYTES) -> None:
        self.num_free_bytes = num_bytes

    def take(self, num_bytes: int) -> bool:
        if num_bytes > self.num_free_bytes:
            return False
        self.num_free_bytes -= num_bytes
        return True


NO_ROOM = BodyRoom(0)


class RequestBody:
    """The part of a request's body that has come. The connection feeds it, and the request reads
    it. Event loop only."""

    def __init__(self, head: RequestHead, source: BodySource) -> None:
        self.length = head.content_length
        self.is_chunked = head.is_chunked
        self.is_empty = not self.is_chunked and not self.length
        self.is_ended = self.is_empty
        self.is_complete = self.is_empty  # `prefix` is the whole body, so it can be sent again
        self.num_read_bytes = 0
        self.prefix = b""
        self.is_held_back = False  # the connection has stopped reading it
        self._source = source
        self._is_invited = not head.expects_continue
        self._error: ProxyError | None = None
        self._pieces: list[bytes] = []
        self._num_held_bytes = 0
        self._allowed_bytes = INSPECTED_BYTES  # with more it is held back
        self._room = NO_ROOM
        self._num_room_bytes = 0  # taken
        self._has_changed = asyncio.Event()

    def feed(self, piece: bytes) -> None:
        """Takes a piece from the connection, which stops reading while too many bytes are held."""
        self.num_read_bytes += len(piece)
        self._num_held_bytes += len(piece)
        self._pieces.append(piece)
        if self._num_held_bytes > self._allowed_bytes:
            self._hold_back(True)
        self._has_changed.set()

    def fail(self, error: ProxyError) -> None:
        """Called by the connection if the rest will not come."""
        self._error = error
        self._has_changed.set()

    def end(self) -> None:
        """Called by the connection at the body's end."""
        self.is_ended = True
        self._has_changed.set()

    async def read_prefix(
        self, max_bytes: int, remedy: str = REMEDY, room: BodyRoom = NO_ROOM
    ) -> None:
        """Waits for the whole body, or for as much as may be held. Raises BodyTooLarge. Call
        `release` in the end, whatever happens."""
        self._room = room
        _check_size(self.length or 0, max_bytes, remedy)
        while not self.is_ended and self._num_held_bytes <= max_bytes and self._may_hold():
            self._hold_back(False)
            await self._wait()
        _check_size(self.num_read_bytes, max_bytes, remedy)
        self.is_complete = self.is_ended and self._may_hold()
        self.prefix = self._take()

    def _may_hold(self) -> bool:
        """Returns whether all that has come may be held. Takes room for it."""
        missing = max(0, self._num_held_bytes - self._allowed_bytes)
        if missing and not (self._num_held_bytes <= LONG_BYTES and self._room.take(missing)):
            return False
        self._allowed_bytes += missing
        self._num_room_bytes += missing
        return True

    def release(self) -> None:
        """Drops the prefix, which is not sent again, and gives its room back."""
        self.prefix = b""
        self._room.num_free_bytes += self._num_room_bytes
        self._num_room_bytes = 0

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
        self._num_held_bytes, self._allowed_bytes = 0, INSPECTED_BYTES
        self._hold_back(False)  # even at the body's end, to notice when the client leaves
        return data

    def _hold_back(self, is_held_back: bool) -> None:
        if self.is_held_back is not is_held_back:
            self.is_held_back = is_held_back
            self._source.set_reading(not is_held_back)

    async def _wait(self) -> None:
        """Waits for more of the body, or its end. Raises the error of the connection."""
        if self._error is None:
            if not self._is_invited:
                self._is_invited = True
                self._source.invite_body()
            self._has_changed.clear()
            await self._has_changed.wait()
        if self._error is not None:
            raise self._error


def _check_size(num_bytes: int, max_bytes: int, remedy: str) -> None:
    if num_bytes > max_bytes:
        raise BodyTooLarge(f"The request body exceeds {max_bytes} bytes; {remedy}.")


class RoutingHints(NamedTuple):
    """Facts from a JSON body, mostly to choose an upstream. Other bodies give none."""

    model: str | None = None
    affinity_key: str | None = None
    may_ask_usage: bool = False  # on the client's behalf
    takes_row: bool = False
    route_key: str = ""  # chooses among the servers of a route

    def routed(self, team_id: str, request_id: str) -> "RoutingHints":
        """Returns the hints with a route key, by which a team's session stays with one server.
        Without a session, the key differs for each request."""
        is_session = (self.affinity_key or "").startswith(SESSION)
        session_key = self.affinity_key if is_session else request_id
        return self._replace(route_key=f"{team_id}\0{session_key}")


class InboundRequest(NamedTuple):
    """One request, ready to be forwarded. The upstream is told the last three."""

    head: RequestHead
    body: RequestBody
    hints: RoutingHints
    team_id: str
    token_id: str = ""
    request_id: str = ""


def target_fault(method: str, target: str) -> str | None:
    """Returns why a request line is not forwarded; None if it names a path.

    CONNECT is refused, because it asks for a tunnel, and TRACE, because it would show our headers.
    """
    if method in ("CONNECT", "TRACE"):
        return f"Method {method} is not forwarded."
    is_server_wide = target == "*" and method == "OPTIONS"
    if is_server_wide or (target.startswith("/") and "#" not in target):
        return None
    return "The request target must be a path, or an http(s) URL without a user; send one."


def takes_row(method: str, path: str) -> bool:
    """Returns whether a request to this plain path takes a user row."""
    route = _without_deployment(path).strip("/")
    return method == "POST" and not GENERATING_ROUTES.isdisjoint((route, route.split("/")[0]))


def _without_deployment(path: str) -> str:
    """Returns OpenAI's path for one of Azure's, and other paths as they are."""
    deployed = _DEPLOYMENT.match(path)
    return f"/v1{deployed[2]}" if deployed else path


def is_json(head: RequestHead) -> bool:
    return "json" in head.fields.get("content-type", "").lower()


def read_hints(head: RequestHead, body: RequestBody, takes_row: bool = False) -> RoutingHints:
    """Returns the hints in a JSON body. The native routes name the model in their path, and ignore
    a model in the body; so does this function. Raises BadRequest for a "Model" in capitals, which
    servers written in Go would read, and others would not."""
    if head.method == "GET" and body.is_empty:
        return RoutingHints()
    # Decoded before it is split, as the upstream does it: otherwise `/inference%2Fx` would name
    # another model here than there.
    parts = [part for part in unquote(head.target.partition("?")[0]).split("/") if part]
    is_native = bool(parts) and parts[0] in MODEL_ROUTES
    fields = _json_fields(head, body) or {}
    is_openai = parts[:1] == ["v1"]
    if is_openai and any(name != "model" and name.lower() == "model" for name in fields):
        raise BadRequest("The body has a 'model' in capitals, which some servers read; send one.")
    model = ("/".join(parts[1:]) or None) if is_native else fields.get("model")
    if deployed := _DEPLOYMENT.match("/" + "/".join(parts)):
        model = deployed[1]
    return RoutingHints(
        model=model if model and isinstance(model, str) else None,  # forms send empty ones
        affinity_key=_affinity_key(fields),
        may_ask_usage="content-encoding" not in head.fields
        and may_ask_usage(head.target, body.prefix, fields),
        takes_row=takes_row,
    )


def _json_fields(head: RequestHead, body: RequestBody) -> dict[str, Any] | None:
    if not is_json(head) or not body.is_complete or not body.prefix:
        return None
    try:
        content = _decoded(head, body.prefix)
        if content.count(b"[") + content.count(b"{") > MAX_CONTAINERS:
            return None
        fields = parsed(content)
    except (ValueError, RecursionError):
        return None  # the upstream can say better what is wrong with it
    return fields if isinstance(fields, dict) else None


def parsed(data: bytes) -> object:
    """Parses JSON faster than `json.loads`, which is used only for what needs it: UTF-16, and
    halves of surrogate pairs."""
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
    """Returns a whole body as the upstream will read it. Raises ValueError if that is not known:
    for another encoding, and for gzip that is damaged, or too large once it is decompressed."""
    encoding = head.fields.get("content-encoding", "").strip().lower() or "identity"
    if encoding == "identity":
        return prefix
    if encoding not in GZIP:
        raise ValueError(encoding)
    decompressor = zlib.decompressobj(GZIP_ONLY)
    max_bytes = min(LONG_BYTES, max(INSPECTED_BYTES, MAX_RATIO * len(prefix)))
    try:
        content = decompressor.decompress(prefix, max_bytes + 1)
    except zlib.error as error:
        raise ValueError("no gzip") from error
    if len(content) > max_bytes or not decompressor.eof or decompressor.unused_data:
        raise ValueError("not one gzip member of this size")
    return content


def _affinity_key(fields: dict[str, Any]) -> str | None:
    """Returns a key that requests with a common prefix share: the session, OpenAI's
    `prompt_cache_key`, or the beginning of a conversation, which stays the same as it grows."""
    for name, kind in (("session_id", SESSION), ("prompt_cache_key", "cache:")):
        named = fields.get(name)
        if isinstance(named, str) and named:
            return f"{kind}{named[:AFFINITY_CHARS]}"
    for name in ("text", "prompt", "messages", "input"):
        if value := fields.get(name):
            return f"prompt:{_beginning(value)[:AFFINITY_CHARS]}"
    return None


def _beginning(value: object) -> str:
    """Returns the first text of a prompt; of messages, all texts up to the user's first one."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    texts = []
    for message in value:
        if not isinstance(message, dict):
            # Token ids of one prompt, or the first of several prompts.
            return str(value[:AFFINITY_CHARS] if isinstance(message, int) else value[0])
        texts.append(str(message.get("content")))
        if message.get("role") == "user":
            break
    return "\n".join(texts)


def may_ask_usage(target: str, body: bytes, fields: dict[str, Any]) -> bool:
    """Returns whether to ask for usage: in an uncompressed body whose client leaves that open, on
    a route that reports it. `fields` are the body's."""
    is_open = fields.get("stream") is True and "stream_options" not in fields
    # In UTF-16 every character of a key has a zero byte.
    is_utf8 = body.lstrip().startswith(b"{") and b"\0" not in body
    path = _without_deployment(target.partition("?")[0])
    return is_open and is_utf8 and path.rstrip("/") in USAGE_ROUTES


def asking_usage(body: bytes) -> bytes:
    """Returns the body with the question added, and nothing else changed."""
    return _USAGE_QUESTION + body.lstrip()[1:]
