"""Helps to define the routes of a service: bounded bodies, and large work done in turn."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any

from flask import Blueprint, Response, request

from common.connections.errors import BODY_FAULTS
from common.errors import WireError
from common.operations import ViewT, operation_of
from common.turns import Turns, is_encoded, may_be_large


class BodyTooLarge(WireError):
    status = 413
    code = "body_too_large"

    def __init__(self, max_bytes: int, variable: str) -> None:
        super().__init__(f"the body exceeds {max_bytes} bytes; send less or raise {variable}")


@dataclass(frozen=True, slots=True)
class Wire:
    """How a service reads bodies and writes answers.

    A body has at most `max_body_bytes`, which `variable` sets. `decode` takes its bytes; `read`
    takes a model and the result of `decode`. `refusal` makes an error from a message and a code.
    """

    max_body_bytes: int
    variable: str
    decode: Callable[[bytes], object]
    read: Callable[[type[Any], Any], Any]
    write: Callable[[Any], Response]
    refusal: Callable[[str, str], Exception]


class HttpRoutes:
    """Adds routes to a blueprint while it is built.

    `get`, `post`, `put` and `delete` return decorators for views with an operation. A view gets the
    body first, if the operation has one model for it, then the names in the path. It returns a
    Response, or a value to write. With `in_turn` only one such view runs at a time.
    """

    def __init__(self, blueprint: Blueprint, wire: Wire, merge_slashes: bool | None = None) -> None:
        self.wire = wire
        self._blueprint, self._merge_slashes = blueprint, merge_slashes
        self._turns = Turns()

    def get(self, path: str, in_turn: bool = False) -> Callable[[ViewT], ViewT]:
        return self._route("GET", path, in_turn)

    def post(self, path: str, in_turn: bool = False) -> Callable[[ViewT], ViewT]:
        return self._route("POST", path, in_turn)

    def put(self, path: str) -> Callable[[ViewT], ViewT]:
        return self._route("PUT", path)

    def delete(self, path: str) -> Callable[[ViewT], ViewT]:
        return self._route("DELETE", path)

    def decoded(self) -> object:
        """Returns the request's body. Raises BodyTooLarge, or the service's own error."""
        raw = self._raw()
        if is_encoded(request):
            message = "the body is compressed; send it without a Content-Encoding"
            raise self.wire.refusal(message, "body_compressed")
        return self.wire.decode(raw)

    def _raw(self) -> bytes:
        limit = self.wire.max_body_bytes
        try:
            if (request.content_length or 0) <= limit:
                raw = request.stream.read(limit + 1)
                if len(raw) <= limit:
                    return raw
        except BODY_FAULTS as error:
            message = "the body's chunks are malformed or cut short"
            raise self.wire.refusal(message, "body_malformed") from error
        raise BodyTooLarge(limit, self.wire.variable)

    def _route(self, verb: str, path: str, in_turn: bool = False) -> Callable[[ViewT], ViewT]:
        def add(view: ViewT) -> ViewT:
            described = operation_of(view)
            assert described is not None, "put @operation below"
            model = described.body

            @wraps(view)
            def respond(**names: str) -> Response:
                with ExitStack() as turn:
                    if is_large := model is not None and may_be_large(request):
                        turn.enter_context(self._turns.taken())
                    arguments: tuple[object, ...] = ()
                    if isinstance(model, type):
                        arguments = (self.wire.read(model, self.decoded()),)
                    if in_turn and not is_large:
                        turn.enter_context(self._turns.taken())
                    answer = view(*arguments, **names)
                return answer if isinstance(answer, Response) else self.wire.write(answer)

            self._blueprint.add_url_rule(
                path,
                f"{verb} {path}".replace(".", "_"),
                respond,
                methods=[verb],
                strict_slashes=False,
                merge_slashes=self._merge_slashes,
            )
            return view

        return add
