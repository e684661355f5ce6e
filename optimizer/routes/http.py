"""Reading requests and writing responses. No state of its own: any thread."""

from collections.abc import Callable
from typing import IO, Any
from urllib.parse import unquote

from flask import Blueprint, Response, request

from optimizer.errors import BodyTooLarge, Fault, InvalidRequest
from optimizer.inferno_json import BodyT, decode, encode, read


def json_response(value: object, status: int = 200) -> Response:
    return Response(encode(value), status, content_type="application/json; charset=utf-8")


def text_response(text: str, status: int) -> Response:
    return Response(text, status, content_type="text/plain")


class Http:
    """Adds routes to a blueprint. Used while it is built, then by its views to read bodies."""

    def __init__(
        self, blueprint: Blueprint, max_body_bytes: int, ignore_unknown_keys: bool = False
    ) -> None:
        self._blueprint, self._max_body_bytes = blueprint, max_body_bytes
        self._ignore_unknown_keys = ignore_unknown_keys

    def get(self, path: str, view: Callable[..., Any]) -> None:
        self._add("GET", path, view)

    def post(self, path: str, view: Callable[..., Any]) -> None:
        self._add("POST", path, view)

    def put(self, path: str, view: Callable[..., Any]) -> None:
        self._add("PUT", path, view)

    def body(self, model: type[BodyT]) -> BodyT:
        """The request's body. Raises InvalidRequest and BodyTooLarge."""
        return self.read(model, self.json())

    def read(self, model: type[BodyT], value: object) -> BodyT:
        """A body that is decoded already. Raises InvalidRequest."""
        return read(model, value, ignore_unknown=self._ignore_unknown_keys)

    def json(self) -> object:
        length = request.content_length
        if length is not None and length > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        raw = _read(request.stream, self._max_body_bytes + 1)
        if len(raw) > self._max_body_bytes:
            raise BodyTooLarge(self._max_body_bytes)
        return decode(raw)

    def _add(self, verb: str, path: str, view: Callable[..., Any]) -> None:
        """A view returns a Response, or a value to be answered as JSON."""

        def respond(**names: str) -> Response:
            answer = view(**names)
            return answer if isinstance(answer, Response) else json_response(answer)

        self._blueprint.add_url_rule(
            path, f"{verb} {path}".replace(".", "_"), respond, methods=[verb], strict_slashes=False
        )


def _read(stream: IO[bytes], max_bytes: int) -> bytes:
    try:
        return stream.read(max_bytes)
    except Exception as error:  # each server has errors of its own for what its client sends
        raise InvalidRequest([Fault("", "the body's chunks are malformed or cut short")]) from error


def two_names(rest: str, is_known: Callable[[str], bool]) -> tuple[str, str] | None:
    """Split `first/second`, where either may itself contain a slash.

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
