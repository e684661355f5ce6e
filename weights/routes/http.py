"""Reading requests and writing responses. No state of its own: any thread."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import IO, TypeVar

from flask import Blueprint, Response, request
from pydantic import BaseModel
from werkzeug.routing import PathConverter

from common.connections.errors import BODY_FAULTS
from common.operations import operation_of
from common.turns import Turns, is_encoded, may_be_large
from weights.errors import BodyTooLarge, Fault, InvalidRequest
from weights.schema import Body

BodyT = TypeVar("BodyT", bound=Body)
View = Callable[..., BaseModel | Response]


def json_response(answer: BaseModel, status: int = 200) -> Response:
    text = answer.model_dump_json(exclude_unset=True)
    return Response(text, status, content_type="application/json")


class SessionConverter(PathConverter):
    """A session's id in a path: any text, also with a slash at its start or a line break."""

    regex = "(?s:.+?)"
    part_isolating = False


class Http:
    """Adds routes to a blueprint, while it is built."""

    def __init__(self, blueprint: Blueprint, max_body_bytes: int) -> None:
        blueprint.record_once(
            lambda made: made.app.url_map.converters.update(session=SessionConverter)
        )
        self._blueprint, self._max_body_bytes = blueprint, max_body_bytes
        self._turns = Turns()

    def route(self, verb: str, path: str, in_turn: bool = False) -> Callable[[View], View]:
        """Returns a decorator of a view that has an operation. `in_turn`: it takes long, and runs
        when no other such does.

        The view gets the body, read by the operation's model, before the names in the path. It
        returns a Response, or a model that is sent as JSON.
        """

        def add(view: View) -> View:
            described = operation_of(view)
            assert described is not None, "put @operation below"

            @wraps(view)
            def respond(**names: str) -> Response:
                model = described.body
                with ExitStack() as turn:
                    if is_large := model is not None and may_be_large(request):
                        turn.enter_context(self._turns.taken())
                    given = () if model is None else (self._body(model),)
                    if in_turn and not is_large:
                        turn.enter_context(self._turns.taken())
                    answer = view(*given, **names)
                return answer if isinstance(answer, Response) else json_response(answer)

            self._blueprint.add_url_rule(
                path,
                f"{verb} {path}".replace(".", "_"),
                respond,
                methods=[verb],
                strict_slashes=False,
                merge_slashes=False,
            )
            return view

        return add

    def _body(self, model: type[BodyT]) -> BodyT:
        """Returns the request's body. Raises InvalidRequest and BodyTooLarge."""
        length = request.content_length
        if length is not None and length > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        raw = _read(request.stream, self._max_body_bytes + 1)
        if len(raw) > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        if is_encoded(request):
            message = "it is compressed; send it without a Content-Encoding"
            raise InvalidRequest([Fault(("body",), message, "body_compressed")])
        return model.parse(raw)


def _read(stream: IO[bytes], max_bytes: int) -> bytes:
    try:
        return stream.read(max_bytes)
    except BODY_FAULTS as error:
        raise InvalidRequest(
            [Fault(("body",), "the chunks are malformed or cut short", "body_malformed")]
        ) from error
