"""Chunked bodies: reads them with httptools, and writes them."""

from collections.abc import Callable

import httptools
from httptools import HttpParserError, HttpParserUpgrade

END_OF_CHUNKS = b"0\r\n\r\n"
EMPTY_HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Returns data as a chunk, or nothing for no data: a chunk of size 0 would be the end."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


class ChunkedBody:
    """Reads one chunked body, behind a head that was read elsewhere, until `is_complete`. Used by
    one thread at a time."""

    def __init__(self, on_trailer: Callable[[bytes], object] = lambda _: None) -> None:
        """`on_trailer` gets the name of each trailer, and may raise."""
        self.is_complete = False
        self.has_overrun = False  # bytes have come after its end
        self._on_trailer = on_trailer
        self._is_in_body = False
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(EMPTY_HEAD)
        self._is_in_body = True

    def feed(self, data: bytes) -> bytes:
        """Returns the content that came. It is joined, because each tiny chunk would be an object
        for as long as the body is held. Raises HttpParserError for a malformed body."""
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            # After the body's end, the error is about the bytes behind it.
            if not self.is_complete:
                raise
            self.has_overrun = True
        if self.is_complete:
            del self._parser  # it and this object would keep each other alive
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content

    # httptools calls these.

    def on_message_begin(self) -> None:
        self.has_overrun = self.is_complete

    def on_header(self, name: bytes, _value: bytes) -> None:
        if self._is_in_body and not self.is_complete:
            self._on_trailer(name)

    def on_body(self, piece: bytes) -> None:
        if not self.is_complete:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_complete = True
