"""The body of a request, whole or refused, whatever server it comes through."""

import zlib
from io import BytesIO
from typing import IO

from flask import Request
from werkzeug.utils import cached_property
from werkzeug.wsgi import get_input_stream

from common.connections.errors import BODY_FAULTS
from inference_api.errors import InvalidRequest, RequestTooLarge, UnknownEncoding

GZIP = ("gzip", "x-gzip")
GZIP_ONLY = zlib.MAX_WBITS | 16  # zlib's flag for a gzip header


class WholeBodyRequest(Request):
    """werkzeug ends a chunked body at MAX_CONTENT_LENGTH as if there were no more of it."""

    @cached_property
    def stream(self) -> IO[bytes]:
        """The body, decompressed. Raises UnknownEncoding, RequestTooLarge, InvalidRequest."""
        limit, length = self.max_content_length, self.content_length or 0
        assert limit is not None, "the API always has MAX_CONTENT_LENGTH"
        encoding = self.headers.get("Content-Encoding", "").strip().lower() or "identity"
        if encoding not in (*GZIP, "identity"):
            raise UnknownEncoding(encoding)
        if length > limit:
            raise RequestTooLarge(limit)
        try:
            body = get_input_stream(self.environ, max_content_length=limit + 1).read()
        except BODY_FAULTS as error:
            raise InvalidRequest("The body's chunks are malformed or cut short.") from error
        if len(body) > limit:
            raise RequestTooLarge(limit)
        if len(body) < length:
            raise InvalidRequest(f"The body has {len(body)} bytes of {length}; send all of it.")
        if encoding in GZIP:
            body = decompressed(body, limit)
            del self.environ["HTTP_CONTENT_ENCODING"]  # it is undone, for all that read on
        return BytesIO(body)


def decompressed(body: bytes, max_bytes: int) -> bytes:
    """Returns what one member of gzip holds, having made no more than `max_bytes` and one of it.

    Raises RequestTooLarge above these, InvalidRequest for what is no gzip, cut, or goes on.
    """
    decompressor = zlib.decompressobj(GZIP_ONLY)
    try:
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(
            f"The body is declared as gzip and is not ({error}); compress it, or leave out "
            "Content-Encoding."
        ) from None
    if len(content) > max_bytes:
        raise RequestTooLarge(max_bytes, is_compressed=True)
    if not decompressor.eof:
        raise InvalidRequest("The body's gzip is cut short; send all of it.")
    if decompressor.unused_data:
        raise InvalidRequest("Something follows the body's gzip; send one member, and only that.")
    return content
