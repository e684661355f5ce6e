"""Reading requests and writing responses. No state of its own: any thread."""

from collections.abc import Callable
from typing import IO, Any, TypeVar

from flask import Blueprint, Response, request
from pydantic import BaseModel

from weights.errors import BodyTooLarge, Fault, InvalidRequest
from weights.schema import Body

BodyT = TypeVar("BodyT", bound=Body)


def json_response(answer: BaseModel, status: int = 200) -> Response:
    text = answer.model_dump_json(exclude_unset=True)
    return Response(text, status, content_type="application/json")


class Http:
    """Adds routes to a blueprint. Used while it is built, then by its views to read bodies."""

    def __init__(self, blueprint: Blueprint, max_body_bytes: int) -> None:
        self._blueprint, self._max_body_bytes = blueprint, max_body_bytes

    def add(self, verb: str, path: str, view: Callable[..., Any]) -> None:
        """A view returns a Response, or a model to be answered as JSON."""

        def respond(**names: str) -> Response:
            answer = view(**names)
            return answer if isinstance(answer, Response) else json_response(answer)

        name = f"{verb} {path}".replace(".", "_")
        self._blueprint.add_url_rule(
            path, name, respond, methods=[verb], strict_slashes=False, merge_slashes=False
        )

    def body(self, model: type[BodyT]) -> BodyT:
        """The request's body. Raises InvalidRequest and BodyTooLarge."""
        length = request.content_length
        if length is not None and length > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        raw = _read(request.stream, self._max_body_bytes + 1)
        if len(raw) > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        return model.parse(raw)


def _read(stream: IO[bytes], max_bytes: int) -> bytes:
    try:
        return stream.read(max_bytes)
    except Exception as error:  # each server has errors of its own for what its client sends
        raise InvalidRequest(
            [Fault(("body",), "the chunks are malformed or cut short", "body_malformed")]
        ) from error
