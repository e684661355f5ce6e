"""Decompresses gzip and deflate, which an upstream may send although it was asked for neither."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
MAX_PIECE_BYTES = 64 * 1024
# Beyond MAX_FREE_BYTES plus this many times its size, a body is a bomb. Events shrink 30 times.
MAX_GROWTH = 64
MAX_FREE_BYTES = 1024 * 1024
WITH_HEADER = zlib.MAX_WBITS | 32  # zlib's flag for either header, gzip's or its own
WITHOUT_HEADER = -zlib.MAX_WBITS  # raw data, which some servers call deflate


@dataclass(slots=True)
class Inflater:
    """Decompresses a body as it comes, at most MAX_PIECE_BYTES at a time."""

    _stream: "zlib._Decompress | None" = None  # None: the format is not known yet
    _begin: bytes = b""
    _num_in: int = 0
    _num_out: int = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the content. Raises ValueError for damaged data, another format, or a bomb."""
        self._num_in += len(data)
        if self._stream is None:
            data = self._begin = self._begin + data
            if len(data) < 2:
                return
            self._stream = zlib.decompressobj(WITH_HEADER if _has_header(data) else WITHOUT_HEADER)
        piece = b""
        while data or len(piece) == MAX_PIECE_BYTES:
            try:
                piece = self._stream.decompress(data, MAX_PIECE_BYTES)
            except zlib.error as error:
                raise ValueError("neither gzip nor deflate") from error
            self._num_out += len(piece)
            if self._num_out > MAX_FREE_BYTES + MAX_GROWTH * self._num_in:
                raise ValueError("a bomb")
            yield piece
            data = self._stream.unconsumed_tail
            if self._stream.eof and (data := self._stream.unused_data):
                self._stream = zlib.decompressobj(WITH_HEADER)


def _has_header(data: bytes) -> bool:
    """Returns whether data begins with gzip's magic number, or zlib's (RFC 1950, section 2.2)."""
    is_zlib = data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0
    return data.startswith(b"\x1f\x8b") or is_zlib
