"""Server-sent events, and the headers of answers."""

import json
from collections.abc import Iterable, Iterator, Mapping
from errno import ECONNRESET

from inference_api.core.generations import TextGeneration
from inference_api.errors import HearthError

EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

dumped = json.JSONEncoder(separators=(",", ":")).encode


def sse(content: Mapping[str, object]) -> bytes:
    """Returns an event without a name."""
    return f"data: {dumped(content)}\n\n".encode()


def named_event(content: Mapping[str, object]) -> bytes:
    """Returns an event that is named by the content's `type`."""
    return f"event: {content['type']}\n".encode() + sse(content)


def breaking_off(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the chunks of a stream. If it fails, raises an error for which gunicorn closes the
    connection and logs no traceback: the generation's line has its code."""
    try:
        yield from chunks
    except HearthError as error:
        raise ConnectionResetError(ECONNRESET, str(error)) from error


def switch_headers(generations: Iterable[TextGeneration]) -> dict[str, str]:
    """Returns headers with the time the request waited for its model to be loaded, if it did."""
    switches = [each.switch for each in generations if each.switch is not None]
    if not switches:
        return {}
    switching_time_s = max(each.switching_time_s for each in switches)
    return {"X-Switching-Time-Ms": str(round(1000 * switching_time_s))}
