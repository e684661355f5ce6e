"""The head of one request, and the reader that finds requests in a client's bytes.

httptools' parser (llhttp, strict by default) interprets the bytes. This module refuses requests
that it accepts although two servers could read them in two ways.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import httptools
from httptools import HttpParserError, HttpParserUpgrade

from common.connections.chunks import ChunkedBody
from common.connections.sockets import host_fault
from proxy.errors import BadRequest, ExpectationFailed, HeadTooLarge, ProxyError

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 100
MAX_CACHED_NAME = 64  # bytes; longer ones could fill the memory
END_OF_HEAD = b"\r\n\r\n"
# Without a user, which may be there to deceive (RFC 9110, section 4.2.4), and without a fragment.
_URL = re.compile(r"(?i:https?)://([^/?#@:][^/?#@]*)((?:[/?][^#]*)?)")
# Fields that may come only once, because another server might believe the second one.
SINGLE_FIELDS = frozenset({"host", "content-length"})
# Fields that may not come after the body, because that is too late (RFC 9110, section 6.5.1).
NO_TRAILERS = frozenset(
    {"api-key", "authorization", "content-encoding", "content-length", "cookie", "host", "te"}
    | {"transfer-encoding", "x-api-key"}
)


@dataclass(slots=True)
class RequestHead:
    """`fields` has names in lower case. Values of a repeated name are joined by a comma."""

    method: str
    target: str  # as in the request line, still percent-encoded
    fields: dict[str, str]
    is_http_1_0: bool = False
    keeps_alive: bool = True
    peer: str = ""
    scheme: str = "http"

    @property
    def content_length(self) -> int | None:
        length = self.fields.get("content-length")
        return None if length is None else int(length)

    @property
    def is_chunked(self) -> bool:
        return "transfer-encoding" in self.fields

    @property
    def expects_continue(self) -> bool:
        return "expect" in self.fields and not self.is_http_1_0


@lru_cache(maxsize=1024)
def _key_of(name: bytes) -> str:
    return name.decode("latin-1").lower()


class RequestPart(Enum):
    """The part of a request that the next byte belongs to."""

    HEAD = "head"
    BODY = "body"
    NONE = "none: it is whole"


class RequestReader:
    """Reads one request; the next one needs a new reader. Calls `on_head` once, then `on_body` for
    each piece. `part` is NONE when the whole request has come. Event loop only."""

    def __init__(
        self, on_head: Callable[[RequestHead], None], on_body: Callable[[bytes], None]
    ) -> None:
        self.part = RequestPart.HEAD
        self.has_overrun = False  # bytes after a chunked body have been lost
        self.num_missing_bytes = 0  # bytes still to come of a body of known length
        self._on_head, self._on_body = on_head, on_body
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._url = b""
        self._fields: dict[str, str] = {}
        self._num_fields = 0
        self._num_head_bytes = 0
        self._last_bytes = b""
        self._chunks: ChunkedBody | None = None
        self._num_framing_bytes = 0  # bytes fed since a chunked body last brought content

    @property
    def has_begun(self) -> bool:
        return self._num_head_bytes > 0

    def feed(self, data: bytes) -> bytes:
        """Reads bytes. Returns those that belong to the next request. Raises ProxyError."""
        try:
            while data and self._parser is not None:
                data = self._feed_head(self._parser, data)
            if data and self._chunks is not None:
                self._feed_chunks(self._chunks, data)
                return b""
        except HttpParserError as error:
            if isinstance(error.__context__, ProxyError):
                raise error.__context__ from None
            raise BadRequest(f"The request is malformed: {error}; send HTTP/1.1.") from error
        return self._feed_sized_body(data) if data and self.part is RequestPart.BODY else data

    def _feed_head(self, parser: httptools.HttpRequestParser, data: bytes) -> bytes:
        """Feeds no byte beyond the head, because the parser does not say how far it has read."""
        end = self._end_of_head(data)
        self._num_head_bytes += end
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge(f"The request head exceeds {MAX_HEAD_BYTES} bytes.")
        # A request may ask for another protocol, which the proxy lacks. It answers in HTTP.
        with suppress(HttpParserUpgrade):
            parser.feed_data(data[:end] if end < len(data) else data)
        if self.part is not RequestPart.HEAD:
            self._parser = None  # it is done, and it and this object would keep each other alive
        return data[end:]

    def _end_of_head(self, data: bytes) -> int:
        seam = self._last_bytes + data[:3]
        at = seam.find(END_OF_HEAD)
        if at >= 0:
            end = at + 4 - len(self._last_bytes)
        else:
            at = data.find(END_OF_HEAD)
            end = at + 4 if at >= 0 else len(data)
        self._last_bytes = (self._last_bytes + data[max(0, end - 3) : end])[-3:]
        return end

    def _feed_sized_body(self, data: bytes) -> bytes:
        missing = self.num_missing_bytes
        self._on_body(data[:missing] if missing < len(data) else data)
        self.num_missing_bytes = max(0, missing - len(data))
        if not self.num_missing_bytes:
            self.part = RequestPart.NONE
        return data[missing:]

    def _feed_chunks(self, chunks: ChunkedBody, data: bytes) -> None:
        self._num_framing_bytes += len(data)
        if content := chunks.feed(data):
            self._num_framing_bytes = 0
            self._on_body(content)
        if chunks.is_complete:
            self.part, self.has_overrun, self._chunks = RequestPart.NONE, chunks.has_overrun, None
        elif self._num_framing_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge(f"Trailers or a chunk's extensions exceed {MAX_HEAD_BYTES} bytes.")

    # httptools calls these.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = (_key_of if len(name) <= MAX_CACHED_NAME else _key_of.__wrapped__)(name)
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise HeadTooLarge(f"The request head has more than {MAX_FIELDS} fields.")
        if "_" in key:  # an upstream may take it for the name with a hyphen
            return
        text = value.decode("latin-1").rstrip(" \t")  # the parser has removed leading ones
        if key in self._fields:
            if key in SINGLE_FIELDS:
                raise BadRequest(f"The field '{key}' came twice; send it once.")
            text = f"{self._fields[key]},{text}"
        self._fields[key] = text

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise BadRequest(f"HTTP/{version} is not known here; send HTTP/1.1.")
        method = self._parser.get_method().decode("latin-1")
        head = RequestHead(
            method,
            self._url.decode("latin-1"),
            self._fields,
            is_http_1_0=version == "1.0",
            keeps_alive=self._parser.should_keep_alive() and version == "1.1",
        )
        is_chunked = head.is_chunked
        if is_chunked and head.is_http_1_0:
            raise BadRequest("HTTP/1.0 knows no Transfer-Encoding; send a Content-Length.")
        if is_chunked and self._fields["transfer-encoding"].lower() != "chunked":
            raise BadRequest("Only the Transfer-Encoding 'chunked' is known here.")
        if fault := host_fault(head.fields.get("host"), is_http_1_0=head.is_http_1_0):
            raise BadRequest(f"The request is refused: {fault}; send one.")
        if not head.target.startswith("/"):
            _split_url(head)
        if "expect" in self._fields:
            _check_expectations(self._fields["expect"])
        self._chunks = ChunkedBody(_check_trailer) if is_chunked else None
        self.num_missing_bytes = head.content_length or 0
        has_body = is_chunked or self.num_missing_bytes
        self.part = RequestPart.BODY if has_body else RequestPart.NONE
        self._on_head(head)


def _split_url(head: RequestHead) -> None:
    """Splits a target that is a URL into a path and the field Host, in place of the one received
    (RFC 9112, section 3.2.2)."""
    url = _URL.fullmatch(head.target)
    if url is not None and host_fault(url[1], is_http_1_0=False) is None:
        head.fields["host"], path = url.groups()
        is_server_wide = head.method == "OPTIONS" and not path  # section 3.2.4
        head.target = "*" if is_server_wide else f"/{path.removeprefix('/')}"


def _check_trailer(name: bytes) -> None:
    key = name.decode("latin-1").lower()
    if key in NO_TRAILERS:
        raise BadRequest(f"A trailer may not be called '{key}'; send it with the head.")


def _check_expectations(expect: str) -> None:
    """Raises ExpectationFailed. The field is a list, and may come several times."""
    expectations = {each.strip(" \t").lower() for each in expect.split(",")} - {""}
    if expectations != {"100-continue"}:
        raise ExpectationFailed(expect[:64])
