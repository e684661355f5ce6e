"""Reading requests and writing responses. No state of its own: any thread."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import IO
from urllib.parse import unquote

from flask import Blueprint, Response, request

from common.connections.errors import BODY_FAULTS
from common.operations import ViewT, operation_of
from common.turns import Turns, is_encoded, may_be_large
from optimizer.errors import BodyTooLarge, Fault, InvalidRequest
from optimizer.inferno_json import Body, BodyT, Reading, decode, encode, read


def json_response(value: object, status: int = 200) -> Response:
    text = encode(value.dump() if isinstance(value, Body) else value)
    return Response(text, status, content_type="application/json; charset=utf-8")


def text_response(text: str, status: int) -> Response:
    return Response(text, status, content_type="text/plain")


class Http:
    """Adds routes to a blueprint while it is built; reads bodies for its views.

    `get`, `post` and `put` return decorators of views that have an operation. A view gets the
    body first, where the operation has one model for it; it returns a Response, or a value that
    is sent as JSON. `in_turn`: it takes long, and runs when no other such does.
    """

    def __init__(
        self, blueprint: Blueprint, max_body_bytes: int, ignore_unknown_keys: bool = False
    ) -> None:
        self._blueprint, self._max_body_bytes = blueprint, max_body_bytes
        self._reading = Reading.REFERENCE if ignore_unknown_keys else Reading.OURS
        self._turns = Turns()

    def get(self, path: str, in_turn: bool = False) -> Callable[[ViewT], ViewT]:
        return self._route("GET", path, in_turn)

    def post(self, path: str, in_turn: bool = False) -> Callable[[ViewT], ViewT]:
        return self._route("POST", path, in_turn)

    def put(self, path: str) -> Callable[[ViewT], ViewT]:
        return self._route("PUT", path)

    def read(self, model: type[BodyT], value: object) -> BodyT:
        """Returns a decoded body. Raises InvalidRequest."""
        return read(model, value, self._reading)

    def json(self) -> object:
        """Returns the decoded body of the request. Raises InvalidRequest and BodyTooLarge."""
        length = request.content_length
        if length is not None and length > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        raw = _read(request.stream, self._max_body_bytes + 1)
        if len(raw) > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        if is_encoded(request):
            raise InvalidRequest(
                [Fault("", "the body is compressed; send it without a Content-Encoding")]
            )
        return decode(raw)

    def _route(self, verb: str, path: str, in_turn: bool = False) -> Callable[[ViewT], ViewT]:
        name = f"{verb} {path}".replace(".", "_")

        def add(view: ViewT) -> ViewT:
            described = operation_of(view)
            assert described is not None, "put @operation below"
            model = described.body

            @wraps(view)
            def respond(**names: str) -> Response:
                with ExitStack() as turn:
                    if is_large := model is not None and may_be_large(request):
                        turn.enter_context(self._turns.taken())
                    given: tuple[Body, ...] = (
                        (self.read(model, self.json()),) if isinstance(model, type) else ()
                    )
                    if in_turn and not is_large:
                        turn.enter_context(self._turns.taken())
                    answer = view(*given, **names)
                return answer if isinstance(answer, Response) else json_response(answer)

            self._blueprint.add_url_rule(path, name, respond, methods=[verb], strict_slashes=False)
            return view

        return add


def _read(stream: IO[bytes], max_bytes: int) -> bytes:
    try:
        return stream.read(max_bytes)
    except BODY_FAULTS as error:
        raise InvalidRequest([Fault("", "the body's chunks are malformed or cut short")]) from error


def two_names(rest: str, is_known: Callable[[str], bool]) -> tuple[str, str] | None:
    """Splits `first/second`, where either may itself contain a slash.

    An encoded slash (%2F) belongs to a name: the path as it was sent tells it from a separator.
    If the sender did not encode, the longest first name that is known decides.
    """
    sent = str(request.environ.get("RAW_URI") or request.environ.get("REQUEST_URI") or "")
    fixed = request.path.rstrip("/").count("/") - rest.rstrip("/").count("/")
    segments = [unquote(part) for part in sent.partition("?")[0].rstrip("/").split("/")][fixed:]
    if len(segments) == 2 and "/".join(segments) == rest.rstrip("/"):
        return segments[0], segments[1]
    parts = rest.rstrip("/").split("/")
    splits = [("/".join(parts[:i]), "/".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
    return next((split for split in splits if is_known(split[0])), splits[-1] if splits else None)
