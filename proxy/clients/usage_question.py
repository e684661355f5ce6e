"""Adds a question for usage to the request of a stream whose client does not ask for it.

OpenAI's streams report usage in a separate event. A client that did not ask does not get it.
"""

from typing import Any

ROUTES = frozenset({"/v1/completions", "/v1/chat/completions"})
# Statuses by which an upstream may refuse the question. They may also be the client's own fault.
REFUSALS = frozenset({400, 422})
_QUESTION = b'{"stream_options":{"include_usage":true},'


def may_ask(target: str, body: bytes, fields: dict[str, Any]) -> bool:
    """Returns whether to ask for usage: in an uncompressed body whose client leaves that open, on
    a route that reports it. `fields` are the body's."""
    is_open = fields.get("stream") is True and "stream_options" not in fields
    # In UTF-16 every character of a key has a zero byte.
    is_utf8 = body.lstrip().startswith(b"{") and b"\0" not in body
    return is_open and is_utf8 and target.partition("?")[0].rstrip("/") in ROUTES


def asking(body: bytes) -> bytes:
    """Returns the body with the question added, and nothing else changed."""
    return _QUESTION + body.lstrip()[1:]
