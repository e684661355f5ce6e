"""Answers in the reference's format, and paths with two names. Any thread."""

from collections.abc import Callable
from urllib.parse import unquote

from flask import Response, request

from optimizer.inferno_json import Body, encode


def json_response(value: object, status: int = 200) -> Response:
    text = encode(value.dump() if isinstance(value, Body) else value)
    return Response(text, status, content_type="application/json; charset=utf-8")


def no_route() -> Response:
    """Returns the answer for an unknown path or method."""
    return Response("404 page not found", 404, content_type="text/plain")


def two_names(rest: str, is_known: Callable[[str], bool]) -> tuple[str, str] | None:
    """Splits `first/second`, where either may itself contain a slash.

    An encoded slash (%2F) belongs to a name; the path as it was sent shows that. If the sender did
    not encode, the longest known first name decides.
    """
    sent = str(request.environ.get("RAW_URI") or request.environ.get("REQUEST_URI") or "")
    fixed = request.path.rstrip("/").count("/") - rest.rstrip("/").count("/")
    segments = [unquote(part) for part in sent.partition("?")[0].rstrip("/").split("/")][fixed:]
    if len(segments) == 2 and "/".join(segments) == rest.rstrip("/"):
        return segments[0], segments[1]
    parts = rest.rstrip("/").split("/")
    splits = [("/".join(parts[:i]), "/".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
    return next((split for split in splits if is_known(split[0])), splits[-1] if splits else None)
