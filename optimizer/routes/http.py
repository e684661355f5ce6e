"""Answers in the reference's format, answers of failures, and paths with two names. Any thread.

Other answers are defined beside the code that computes them.
"""

from collections.abc import Callable, Container
from typing import NotRequired
from urllib.parse import unquote

from flask import Response, request

from common.wire import WireDict
from optimizer.inferno_json import Body, BodyT, encode

NO_ROUTE = "text/plain"  # for a path with one name instead of two


class FaultAnswer(WireDict):
    path: str
    message: str


class Problem(WireDict):
    """An error of the optimizer; `faults` come with status 400."""

    message: str
    faults: NotRequired[list[FaultAnswer]]


def problems(*statuses: int) -> dict[int, type[Problem]]:
    """Returns the descriptions of an operation's failures, by status."""
    return dict.fromkeys(statuses, Problem)


def json_response(value: object, status: int = 200) -> Response:
    text = encode(value.dump() if isinstance(value, Body) else value)
    return Response(text, status, content_type="application/json; charset=utf-8")


def no_route() -> Response:
    """Returns the answer for an unknown path or method."""
    return Response("404 page not found", 404, content_type="text/plain")


def with_two_names(
    rest: str, known_names: Container[str], answer: Callable[[str, str], BodyT]
) -> BodyT | Response:
    """Returns the answer for the two names in a path, or `no_route` for one name. Names may contain
    slashes.

    An encoded slash (%2F) belongs to a name; the path as it was sent shows that. If the sender did
    not encode, the longest known first name decides.
    """
    sent = str(request.environ.get("RAW_URI") or request.environ.get("REQUEST_URI") or "")
    fixed = request.path.rstrip("/").count("/") - rest.rstrip("/").count("/")
    segments = [unquote(part) for part in sent.partition("?")[0].rstrip("/").split("/")][fixed:]
    if len(segments) == 2 and "/".join(segments) == rest.rstrip("/"):
        return answer(*segments)
    parts = rest.rstrip("/").split("/")
    splits = [("/".join(parts[:i]), "/".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
    if not splits:
        return no_route()
    return answer(*next((split for split in splits if split[0] in known_names), splits[-1]))
