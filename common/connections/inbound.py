"""Collects the bytes of incoming requests for gunicorn's parser.

The polling thread feeds it, without waiting, until a request is complete. Then a request thread
takes the request with its whole body in memory. Only gunicorn's parser interprets the bytes; this
module finds where a request ends.
"""

import re
from collections import deque
from typing import Any

from gunicorn.http.body import ChunkedReader
from gunicorn.http.errors import LimitRequestHeaders, ParseException
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser
from gunicorn.http.unreader import Unreader
from httptools import HttpParserError

from common.connections.chunks import ChunkedBody
from common.connections.sockets import host_fault

MAX_HEAD_BYTES = 64 * 1024  # gunicorn's own limits, on lines and their number, come to 800 KiB
MAX_FRAMING = 2  # a chunked body may take this many times the bytes of a plain one
PIECE_BYTES = 8 * 1024  # small, because gunicorn's reader copies the rest of a piece for each chunk
# A bare LF does not end a head, but gunicorn refuses such a head at once.
END_OF_HEAD = re.compile(rb"\r\n\r\n|(?<!\r)\n")


class Inbound(RequestParser):
    """The requests of one connection, one after another. Used by one thread at a time."""

    def __init__(self, cfg: Any, peer: Any, max_body_bytes: int) -> None:
        super().__init__(cfg, (), peer)
        self.unreader: _Received = _Received()
        self.request: Any = None  # gunicorn's Request, from the end of its head until `take`
        self.num_body_bytes = 0  # as sent, including the framing of chunks
        self._max_body_bytes = max_body_bytes
        self._head = bytearray()
        self._chunks: ChunkedBody | None = None
        self._num_content_bytes = 0  # a chunked body without its framing

    @property
    def has_begun(self) -> bool:
        return bool(self._head) or self.request is not None

    def feed(self, data: bytes) -> bool:
        """Takes received bytes. Returns whether the request can be handed on: it is complete, or
        its body is too large or malformed.

        The application refuses such a body, and the connection is closed. Raises gunicorn's own
        errors if the head is malformed or too large.
        """
        if self.request is None:
            if not self._has_whole_head(data):
                return False
            request = super().__next__()
            host = next((value for name, value in request.headers if name == "HOST"), None)
            if fault := host_fault(host, is_http_1_0=request.version == (1, 0)):
                raise ParseException(fault)
            self.request = request
            self.num_body_bytes = self._num_content_bytes = 0
            is_chunked = isinstance(self.request.body.reader, ChunkedReader)
            self._chunks = ChunkedBody() if is_chunked else None
            data = self.unreader.take_buffered()
        self.num_body_bytes += len(data)
        self.unreader.put(data)
        return self._is_chunked_body_due(data) if self._chunks else self._is_sized_body_due()

    def take_expectation(self) -> bool:
        """Returns whether the client waits for "100 Continue" to send the body; True only once."""
        if self.request is None or not self.request._expected_100_continue:
            return False
        self.request._expected_100_continue = False  # or gunicorn would send it too
        return True

    def __next__(self) -> Request:
        """Returns the request, once it can be handed on."""
        assert self.request is not None, "feed says when a request is due"
        self.take_expectation()
        request: Request = self.request
        self.request = None
        return request

    def _has_whole_head(self, data: bytes) -> bool:
        searched = max(0, len(self._head) - 3)
        self._head += data
        if END_OF_HEAD.search(self._head, searched) is None:
            if len(self._head) > MAX_HEAD_BYTES:
                raise LimitRequestHeaders(f"the head exceeds {MAX_HEAD_BYTES} bytes")
            return False
        self.unreader.unread(self._head)
        self._head.clear()
        return True

    def _is_sized_body_due(self) -> bool:
        length = self.request.body.reader.length
        if length > self._max_body_bytes:
            self.request.force_close()
            return True
        return bool(self.num_body_bytes >= length)

    def _is_chunked_body_due(self, data: bytes) -> bool:
        assert self._chunks is not None
        try:
            self._num_content_bytes += len(self._chunks.feed(data))
            is_malformed = False
        except HttpParserError:
            is_malformed = True
        if self._chunks.is_complete:
            return True
        is_too_large = self._num_content_bytes > self._max_body_bytes
        is_mostly_framing = self.num_body_bytes > MAX_FRAMING * self._max_body_bytes + PIECE_BYTES
        if is_malformed or is_too_large or is_mostly_framing:
            self.request.force_close()
            return True
        return False


class _Received(Unreader):
    """Gives gunicorn's readers the received bytes, then the end."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: deque[bytes] = deque()

    def put(self, data: bytes) -> None:
        self._pieces.extend(
            data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)
        )

    def chunk(self, size_hint: int | None = None) -> bytes:
        return self._pieces.popleft() if self._pieces else b""

    def take_buffered(self) -> bytes:
        rest = super().take_buffered() + b"".join(self._pieces)
        self._pieces.clear()
        return rest
