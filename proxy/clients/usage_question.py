"""The question for usage that is added to the request of a stream whose client does not ask it.

OpenAI's streams say it in an event of its own, which a client that did not ask is not shown.
"""

from typing import Any

ROUTES = frozenset({"/v1/completions", "/v1/chat/completions"})
# What an upstream says that takes no such question. Its client's own faults have them, too.
REFUSALS = frozenset({400, 422})
_QUESTION = b'{"stream_options":{"include_usage":true},'


def may_ask(target: str, body: bytes, fields: dict[str, Any]) -> bool:
    """Whether there is usage to ask for with a plain body, whose client does not say itself what it
    wants; `fields` are what the body says.
    """
    is_open = fields.get("stream") is True and "stream_options" not in fields
    # UTF-16 has a zero byte in every character of a key.
    is_utf8 = body.lstrip().startswith(b"{") and b"\0" not in body
    return is_open and is_utf8 and target.partition("?")[0].rstrip("/") in ROUTES


def asking(body: bytes) -> bytes:
    """The body with the question in it, and as it was otherwise."""
    return _QUESTION + body.lstrip()[1:]
