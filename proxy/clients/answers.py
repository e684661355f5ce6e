"""Writes the heads of answers as bytes. Pure functions, except for the date."""

import json
import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from common.errors import Error, MessagesError, is_of_messages, messages_error
from proxy.errors import NO_HEADERS, Headers, ProxyError

END_OF_CHUNKS = b"0\r\n\r\n"
_PHRASES = {413: "Content Too Large", 499: "Client Closed Request"}  # not as in HTTPStatus


def answer_head(status: int, headers: Headers, *, closes: bool, phrase: str = "") -> bytes:
    """Returns a status line with header fields, which the caller has checked. `phrase` is an
    upstream's, and replaces the status's own."""
    lines = [f"HTTP/1.1 {status} {phrase or phrase_of(status)}", _date(int(time.time()))]
    lines += [f"{name}: {value}" for name, value in headers]
    if closes:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


def phrase_of(status: int) -> str:
    return _PHRASES.get(status) or HTTPStatus(status).phrase


def content_headers(content_type: str, body: bytes) -> Headers:
    return [("Content-Type", content_type), ("Content-Length", str(len(body)))]


def refusal(
    error: ProxyError, request_id: str, target: str = "", more: Headers = NO_HEADERS
) -> tuple[Headers, bytes]:
    """Returns the header fields and the body of a refusal, in the format of the target's API."""
    headers = [("X-Request-Id", request_id), *more]
    shown: Error | MessagesError = error.body()
    if is_of_messages(target.partition("?")[0]):
        shown = messages_error(error.status, str(error), request_id)
        headers.append(("request-id", request_id))
    body = json.dumps(shown).encode()
    return content_headers("application/json", body) + error.headers + headers, body


def chunk(data: bytes) -> bytes:
    """Returns data as a chunk, or nothing for no data: a chunk of size 0 would be the end."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


@lru_cache(maxsize=2)
def _date(now_s: int) -> str:
    return f"Date: {formatdate(now_s, usegmt=True)}"
