"""The body of the native routes: which fields it has, what they accept, what is refused.

Lenient where documented clients need it (numbers as strings, null for absent), exact otherwise.
The first fault in the order of `FIELDS` is reported, types before bounds.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inference_api.bodies.json_object import parse_object, shortened, to_float
from inference_api.errors import InvalidRequest
from inference_api.request import GenerationParams, SamplingParams

MAX_STOP_STRINGS = 8
MAX_SESSION_ID_CHARS = 128
SESSION_ID = re.compile(rf"[!-~]{{1,{MAX_SESSION_ID_CHARS}}}")  # printable ASCII: it is a header
INTEGER_TEXT = re.compile(r"\s*[+-]?[0-9]{1,30}(\.0{0,30})?\s*")
NUMBER_TEXT = re.compile(
    r"\s*[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,4})?\s*"
)
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


class NotThisType(Exception):
    """A reader's way to say that a JSON value is not of its field's type."""


def read_string(value: object) -> str:
    if not isinstance(value, str):
        raise NotThisType
    return value


def read_number(value: object) -> float:
    if isinstance(value, str) and NUMBER_TEXT.fullmatch(value):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotThisType
    return to_float(value)


def read_integer(value: object) -> int:
    if isinstance(value, str) and INTEGER_TEXT.fullmatch(value):
        return int(value.strip().partition(".")[0])
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotThisType
    return value


def read_boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str | int) and str(value).strip().lower() in TRUTHS:
        return TRUTHS[str(value).strip().lower()]
    raise NotThisType


def read_stop_strings(value: object) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise NotThisType
    return tuple(item for item in strings if item)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its reader, what its type is called, and inclusive bounds where it has them."""

    name: str
    read: Callable[[object], Any]
    type_name: str
    default: Any
    bounds: tuple[float, float] | None = None
    also_accepted: float | None = None

    def json_schema(self) -> dict[str, object]:
        """What `parse_generation_body` accepts for it, null for absent included."""
        low, high = self.bounds or (None, None)
        bounds = {"minimum": low, "maximum": high} if self.bounds else {}
        by_type: dict[str, list[dict[str, object]]] = {
            "string": [{"type": "string"}],
            "number": [{"type": "number", **bounds}, _text_of(NUMBER_TEXT)],
            "integer": [{"type": "integer", **bounds}, _text_of(INTEGER_TEXT)],
            "boolean": [{"type": "boolean"}, {"enum": [*TRUTHS, 0, 1]}],
            "string or list of strings": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STOP_STRINGS},
            ],
        }
        also = [] if self.also_accepted is None else [{"const": self.also_accepted}]
        shown = {} if self.default is None else {"default": self.default}
        return {"anyOf": [*by_type[self.type_name], *also, {"type": "null"}], **shown}


FIELDS = (
    Field("text", read_string, "string", None),
    Field("temperature", read_number, "number", 1.0, (0.01, 100), also_accepted=0.0),
    Field("top_p", read_number, "number", 0.9, (0.01, 1.0)),
    Field("top_k", read_integer, "integer", 40, (1, 1000)),
    Field("max_tokens", read_integer, "integer", 128, (1, 2048)),
    Field("stop_sequence", read_stop_strings, "string or list of strings", ()),
    Field("return_prompt", read_boolean, "boolean", False),
    Field("session_id", read_string, "string", None),
    Field("seed", read_integer, "integer", None, (-(2**63), 2**63 - 1)),
)


@dataclass(frozen=True, slots=True)
class GenerationBody:
    """A valid body of `/inference`, `/predictions` or `/chat`."""

    text: str
    return_prompt: bool
    params: GenerationParams


def parse_generation_body(body: bytes, has_strict_bounds: bool = False) -> GenerationBody:
    """Raises InvalidRequest naming the first fault.

    `has_strict_bounds`: as the reference's, whose temperature is never 0.
    """
    given = parse_object(body)
    if given.get("text") in (None, ""):
        raise InvalidRequest("required 'text' parameter is either empty or not provided", "text")
    values = {field.name: _read(field, given) for field in FIELDS}
    for field in FIELDS:
        if has_strict_bounds or values[field.name] != field.also_accepted:
            _check_bounds(field, values[field.name])
    _check_stop_strings(values["stop_sequence"])
    _check_session_id(values["session_id"])
    seed = secrets.randbits(63) if values["seed"] is None else values["seed"]
    sampling = SamplingParams(
        temperature=values["temperature"],
        top_k=values["top_k"],
        top_p=values["top_p"],
        seed=seed % 2**64,
    )
    params = GenerationParams(
        max_tokens=values["max_tokens"],
        stop_strings=values["stop_sequence"],
        session_id=values["session_id"] or None,
        sampling=sampling,
    )
    return GenerationBody(values["text"], values["return_prompt"], params)


def json_schema() -> dict[str, object]:
    """The JSON schema of a body, from the same table that reads it."""
    properties = {field.name: field.json_schema() for field in FIELDS}
    properties["text"] = {"type": "string", "minLength": 1}
    properties["session_id"] = {"anyOf": [{"maxLength": 0}, _text_of(SESSION_ID), {"type": "null"}]}
    return {"type": "object", "required": ["text"], "properties": properties}


def _text_of(pattern: re.Pattern[str]) -> dict[str, object]:
    return {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}


def _read(field: Field, given: Mapping[str, object]) -> Any:
    value = given.get(field.name)
    if value is None:
        return field.default
    try:
        return field.read(value)
    except NotThisType:
        json_type = JSON_TYPES.get(type(value), "object")
        raise InvalidRequest(
            f"Parameter: {field.name} is type={json_type}, expected {field.type_name}", field.name
        ) from None


def _check_bounds(field: Field, value: Any) -> None:
    if field.bounds is None or value is None:
        return
    low, high = field.bounds
    if not low <= value <= high:
        raise InvalidRequest(
            f"Parameter: {field.name}={shortened(value)} is outside bounds, "
            f"{low} <= {field.name} <= {high}.",
            field.name,
        )


def _check_stop_strings(stop_strings: tuple[str, ...]) -> None:
    if len(stop_strings) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"Parameter: stop_sequence={len(stop_strings)} strings is outside bounds, "
            f"0 <= stop_sequence <= {MAX_STOP_STRINGS}.",
            "stop_sequence",
        )


def _check_session_id(session_id: str | None) -> None:
    if session_id and not SESSION_ID.fullmatch(session_id):
        raise InvalidRequest(
            f"Parameter: session_id must be 1 to {MAX_SESSION_ID_CHARS} printable ASCII "
            "characters without spaces.",
            "session_id",
        )
