"""The calls of one answer while they are read, and the JSON calls that most formats share."""

import json
from collections.abc import Callable, Mapping

from inference_api.tools.events import ArgumentsDelta, CallEnd, CallStart, Event, Json, TextDelta
from inference_api.tools.reader import EndOfText, NotACall, Reader, Steps

BETWEEN_CALLS = " \t\r\n,;]"
_ARGUMENTS_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("type", "id")


class Calls:
    """The calls of one answer so far, at most one of them open."""

    def __init__(
        self,
        schemas: Mapping[str, Json],
        new_id: Callable[[str], str],
        plain: frozenset[str] = frozenset(),
    ) -> None:
        """`schemas` has the parameters of each function that may be called, by name. A function in
        `plain` takes the rest of the answer as its input. `new_id` is given a function's name."""
        self.schemas = schemas
        self.plain = plain
        self.count = 0
        self.is_open = False
        self.settled_at = 0  # end of the text of finished calls
        self._new_id = new_id

    def start(self, name: str) -> Event:
        """Begin a call. Raises NotACall for a name that the client does not offer."""
        if name not in self.schemas:
            raise NotACall
        self.is_open = True
        self.count += 1
        return CallStart(self.count - 1, self._new_id(name), name)

    def arguments(self, piece: str) -> Event:
        return ArgumentsDelta(self.count - 1, piece)

    def end(self, at: int) -> Event:
        self.is_open = False
        self.settled_at = at
        return CallEnd(self.count - 1)


def attempt(reader: Reader, calls: Calls, start: int, body: Steps[None]) -> Steps[bool]:
    """Reads calls. If the text from `start` on turns out to be none, it is sent as text.

    Raises EndOfText, after ending a call that has begun, or sending its beginning as text.
    """
    try:
        yield from body
        return True
    except NotACall:
        if calls.is_open:
            yield calls.end(reader.at)
        yield from _as_text(reader.text[max(start, calls.settled_at) : reader.at])
        return False
    except EndOfText:
        if calls.is_open:
            yield calls.end(len(reader.text))
        rest = reader.text[max(start, calls.settled_at) :]
        if calls.settled_at <= start or rest.strip(BETWEEN_CALLS):
            yield from _as_text(rest)
        raise


def _as_text(text: str) -> Steps[None]:
    if text:
        yield TextDelta(text)


def json_calls(reader: Reader, calls: Calls) -> Steps[None]:
    """Reads one call as a JSON object, or a list of them. Raises NotACall."""
    yield from reader.skip_space()
    if not (yield from reader.take("[")):
        yield from json_call(reader, calls)
        return
    yield from reader.skip_space()
    while not (yield from reader.take("]")):
        yield from json_call(reader, calls)
        yield from reader.skip_space()
        yield from reader.take(",")
        yield from reader.skip_space()
    calls.settled_at = reader.at


def json_call(reader: Reader, calls: Calls) -> Steps[None]:
    """Reads `{"name": ..., "arguments": {...}}`, in either order. Raises NotACall."""
    yield from reader.expect("{")
    name: str | None = None
    early: str | None = None  # arguments that come before the name
    yield from reader.skip_space()
    while not (yield from reader.take("}")):
        key = yield from reader.json_text()
        yield from reader.expect(":")
        if key in _ARGUMENTS_KEYS and name in calls.plain:
            yield from reader.take(" ")
            yield from plain_input(reader, calls, name or "")
        yield from reader.skip_space()
        if key == "name" and name is None:
            name = yield from reader.json_text()
            if name not in calls.schemas:
                raise NotACall
        elif key in _ARGUMENTS_KEYS and name is not None and not calls.is_open:
            yield from json_arguments(reader, calls, name)
        elif key in _ARGUMENTS_KEYS and early is None:
            early = _as_object((yield from reader.json_value()))
        elif key in _OTHER_KEYS:
            yield from reader.json_value()
        else:
            raise NotACall
        yield from reader.skip_space()
        if not (yield from reader.take(",")):
            yield from reader.expect("}")
            break
        yield from reader.skip_space()
    if name is None:
        raise NotACall
    if not calls.is_open:
        yield calls.start(name)
        yield calls.arguments("{}" if early is None else early)
    yield calls.end(reader.at)


def plain_input(reader: Reader, calls: Calls, name: str) -> Steps[None]:
    """Reads the rest of the answer as the input of a call. Raises EndOfText at its end."""
    yield calls.start(name)
    yield from reader.until((), calls.arguments, trims=False)
    raise EndOfText


def json_arguments(reader: Reader, calls: Calls, name: str) -> Steps[None]:
    """Reads a call's arguments, and begins the call. They are an object, a JSON text of one, or
    nothing or `null` for an empty one. Raises NotACall."""
    if (yield from reader.peek()) == "{":
        yield calls.start(name)
        yield from reader.json_nested(calls.arguments)
        return
    arguments = _as_object((yield from reader.json_value()))
    yield calls.start(name)
    yield calls.arguments(arguments)


def _as_object(value: str) -> str:
    """Returns the arguments as the JSON of an object. Raises NotACall."""
    if value.startswith("{"):
        return value
    try:
        parsed = json.loads(value, strict=False)
        parsed = (parsed.strip() or "{}") if isinstance(parsed, str) else parsed
        if parsed is None:
            return "{}"
        if isinstance(parsed, str) and isinstance(json.loads(parsed), dict):
            return parsed
    except (ValueError, RecursionError):
        pass
    raise NotACall
