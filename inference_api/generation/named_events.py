"""Server-sent events with names."""

import json
from collections.abc import Mapping

_dumped = json.JSONEncoder(separators=(",", ":")).encode


def named_event(content: Mapping[str, object]) -> bytes:
    """Returns the event; its `type` is its name, too."""
    return f"event: {content['type']}\ndata: {_dumped(content)}\n\n".encode()
