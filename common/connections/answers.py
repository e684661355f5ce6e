"""Writes the heads of answers as bytes. Pure functions, except for the date."""

import time
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

_PHRASES = {413: "Content Too Large", 499: "Client Closed Request"}  # not as in HTTPStatus


def answer_head(
    status: int, headers: Sequence[tuple[str, str]], *, closes: bool, phrase: str = ""
) -> bytes:
    """Returns a status line with header fields, which the caller has checked. `phrase` is an
    upstream's, and replaces the status's own."""
    phrase = phrase or _PHRASES.get(status) or HTTPStatus(status).phrase
    lines = [f"HTTP/1.1 {status} {phrase}", _date(int(time.time()))]
    lines += [f"{name}: {value}" for name, value in headers]
    if closes:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


def content_headers(content_type: str, body: bytes) -> list[tuple[str, str]]:
    return [("Content-Type", content_type), ("Content-Length", str(len(body)))]


@lru_cache(maxsize=2)
def _date(now_s: int) -> str:
    return f"Date: {formatdate(now_s, usegmt=True)}"
