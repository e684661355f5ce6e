"""Reads the whole body of a request, or refuses it, under any WSGI server."""

import zlib
from io import BytesIO
from typing import IO, Any

from flask import Request
from werkzeug.utils import cached_property
from werkzeug.wsgi import get_input_stream

from common.addresses import OF_AZURE
from common.connections.errors import BODY_FAULTS
from inference_api.errors import InvalidRequest, RequestTooLarge, UnknownEncoding

GZIP = ("gzip", "x-gzip")
GZIP_ONLY = zlib.MAX_WBITS | 16  # zlib's flag for a gzip header


class WholeBodyRequest(Request):
    """A request to one of OpenAI's routes, whatever Azure's clients call it. A chunked body is
    refused above MAX_CONTENT_LENGTH; werkzeug would cut it silently."""

    def __init__(self, environ: dict[str, Any], *options: bool) -> None:
        environ["PATH_INFO"] = OF_AZURE.sub("/v1/", environ["PATH_INFO"])
        super().__init__(environ, *options)

    @cached_property
    def stream(self) -> IO[bytes]:
        """Returns the body, decompressed. Raises UnknownEncoding, RequestTooLarge,
        InvalidRequest."""
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
            raise InvalidRequest(
                "The body's chunks are malformed or cut short; send it whole."
            ) from error
        if len(body) > limit:
            raise RequestTooLarge(limit)
        if len(body) < length:
            raise InvalidRequest(f"The body has {len(body)} bytes of {length}; send all of it.")
        if encoding in GZIP:
            body = decompressed(body, limit)
            del self.environ["HTTP_CONTENT_ENCODING"]  # the body is decompressed from here on
        return BytesIO(body)


def decompressed(body: bytes, max_bytes: int) -> bytes:
    """Returns the content of a gzip member, decompressing at most `max_bytes` + 1.

    Raises RequestTooLarge above `max_bytes`, and InvalidRequest if it is no gzip, cut short, or
    followed by more bytes.
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
