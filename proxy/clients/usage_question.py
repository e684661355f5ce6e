"""The question for usage that is added to the request of a stream whose client does not ask it.

OpenAI's streams say what they used if `stream_options` asks them to, in an event of its own, which
such a client is not shown.
"""

from typing import Any

ROUTES = frozenset({"/v1/completions", "/v1/chat/completions"})
# What an upstream says that takes no such question. Its client's own faults have them, too.
REFUSALS = frozenset({400, 422})
_QUESTION = b'{"stream_options":{"include_usage":true},'


def asking_body(target: str, body: bytes, fields: dict[str, Any]) -> bytes | None:
    """A request's plain body with the question in it; `fields` are what it says. None where its
    client says itself what it wants, or there is nothing to ask.
    """
    is_asked = fields.get("stream") is not True or "stream_options" in fields
    begin = body.lstrip()
    # UTF-16 has a zero byte in every character of a key.
    if is_asked or b"\0" in body or not begin.startswith(b"{"):
        return None
    return _QUESTION + begin[1:] if target.partition("?")[0].rstrip("/") in ROUTES else None
