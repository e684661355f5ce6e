"""The body of a request, whole or refused, whatever server it comes through."""

from io import BytesIO
from typing import IO

from flask import Request
from werkzeug.utils import cached_property
from werkzeug.wsgi import get_input_stream

from inference_api.errors import InvalidRequest, RequestTooLarge


class WholeBodyRequest(Request):
    """werkzeug ends a chunked body at MAX_CONTENT_LENGTH as if there were no more of it."""

    @cached_property
    def stream(self) -> IO[bytes]:
        """The body. Raises RequestTooLarge, and InvalidRequest where it is malformed or cut."""
        limit, length = self.max_content_length, self.content_length or 0
        assert limit is not None, "the API always has MAX_CONTENT_LENGTH"
        if length > limit:
            raise RequestTooLarge(limit)
        try:
            body = get_input_stream(self.environ, max_content_length=limit + 1).read()
        except Exception as error:  # each server has errors of its own for what its client sends
            raise InvalidRequest("The body's chunks are malformed or cut short.") from error
        if len(body) > limit:
            raise RequestTooLarge(limit)
        if len(body) < length:
            raise InvalidRequest(f"The body has {len(body)} bytes of {length}; send all of it.")
        return BytesIO(body)
