"""The body of the native routes, as pydantic models.

It is lenient where documented clients need that (numbers as strings, null for absent), else exact.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, WrapValidator
from pydantic_core import ErrorDetails

from common.plain_yaml import float_of
from inference_api.errors import InvalidRequest
from inference_api.request import GenerationParams, SamplingParams
from inference_api.web.entries import FILLED, MAX_STOP_CHARS, StopString
from inference_api.web.fields import Body, Json, RequestedSpeculation
from inference_api.web.json_object import parse_object, shortened
from inference_api.web.left_aside import LeftAside
from inference_api.web.sampling import seed_of

MAX_STOP_STRINGS = 8
MAX_SESSION_ID_CHARS = 128
INTEGER_TEXT = re.compile(r"\s*[+-]?[0-9]{1,30}(\.0{0,30})?\s*")
NUMBER_TEXT = re.compile(
    r"\s*[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,4})?\s*"
)
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
NO_TEXT = ("missing", "string_too_short")  # pydantic's error types for an absent `text`
# Pydantic's error types for a value of the wrong type.
EXPECTED = {
    "string_type": "string",
    "float_type": "number",
    "int_type": "integer",
    "bool_type": "boolean",
    "list_type": "string or list of strings",
}


def _number(value: Any) -> Any:
    if isinstance(value, str) and NUMBER_TEXT.fullmatch(value):
        return float(value)
    return float_of(value)


def _integer(value: Any) -> Any:
    if isinstance(value, str) and INTEGER_TEXT.fullmatch(value):
        return int(value.strip().partition(".")[0])
    return value


def _boolean(value: Any) -> Any:
    return TRUTHS.get(str(value).strip().lower(), value) if isinstance(value, str | int) else value


def _zero_or_within(value: Any, within_bounds: Callable[[Any], float]) -> float:
    return value if isinstance(value, float) and value == 0 else within_bounds(value)


def _or(*forms: Json) -> Any:
    """Adds to a field's JSON schema the other forms that are accepted, and null."""

    def add_forms(schema: Json) -> None:
        default = schema.pop("default", None)
        kinds = schema.pop("anyOf", None) or [dict(schema)]
        schema.clear()
        null = {"type": "null"}
        schema["anyOf"] = [*(kind for kind in kinds if kind != null), *forms, null]
        if default is not None:
            schema["default"] = default

    return Field(json_schema_extra=add_forms)


def _text_of(pattern: re.Pattern[str]) -> Json:
    return {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}


Number = Annotated[float, BeforeValidator(_number), _or(_text_of(NUMBER_TEXT))]
NumberOrZero = Annotated[
    float,
    WrapValidator(_zero_or_within),
    BeforeValidator(_number),
    _or(_text_of(NUMBER_TEXT), {"const": 0.0}),
]
Integer = Annotated[int, BeforeValidator(_integer), _or(_text_of(INTEGER_TEXT))]
OptionalInteger = Annotated[int | None, BeforeValidator(_integer), _or(_text_of(INTEGER_TEXT))]
Boolean = Annotated[bool, BeforeValidator(_boolean), _or({"enum": [*TRUTHS, 0, 1]})]
StopStrings = Annotated[
    list[StopString],
    Field(fail_fast=True),
    FILLED,
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    _or({"type": "string"}),
]


class NativeBody(Body):
    """The body of `/inference`, `/predictions` and `/chat`. Temperature 0 decodes greedily."""

    text: str = Field(min_length=1)
    temperature: NumberOrZero = Field(1.0, ge=0.01, le=100)
    top_p: Number = Field(0.9, ge=0.01, le=1.0)
    top_k: Integer = Field(40, ge=1, le=1000)
    max_tokens: Integer = Field(128, ge=1, le=2048)
    stop_sequence: StopStrings = Field([], max_length=MAX_STOP_STRINGS)
    return_prompt: Boolean = False
    # Printable ASCII: it is a header.
    session_id: str | None = Field(None, pattern=f"^[!-~]{{0,{MAX_SESSION_ID_CHARS}}}$")
    seed: OptionalInteger = Field(None, ge=-(2**63), le=2**63 - 1)
    speculation: RequestedSpeculation = None

    def params(self) -> GenerationParams:
        """Returns the parameters, with a random seed where none is given."""
        seed = seed_of(self.seed)
        return GenerationParams(
            max_tokens=self.max_tokens,
            stop_strings=tuple(self.stop_sequence),
            session_id=self.session_id or None,
            speculation=self.speculation or "auto",
            sampling=SamplingParams(
                temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=seed
            ),
        )


class StrictNativeBody(NativeBody):
    """The body with the reference's bounds, in which temperature is never 0."""

    temperature: Number = Field(1.0, ge=0.01, le=100)


def parse_native_body(
    kind: type[NativeBody], body: bytes, aside: LeftAside | None = None
) -> NativeBody:
    """Returns the body, as `web.fields.parse` does. Raises InvalidRequest that names a missing
    text, else the first field of a wrong type, else the first one out of bounds."""
    parsed = parse_object(body, says_where=False)
    try:
        return kind.model_validate(parsed, context=aside or LeftAside(kind))
    except ValidationError as error:
        raise _refusal(kind, min(error.errors(include_url=False), key=_rank), parsed) from None


def _rank(detail: ErrorDetails) -> int:
    return 0 if detail["type"] in NO_TEXT else 1 if _kind(detail) in EXPECTED else 2


def _kind(detail: ErrorDetails) -> str:
    """Returns pydantic's error type. If one of several texts is expected, and the value is no text,
    this is the type for a value that is no text."""
    is_other_type = detail["type"] == "literal_error" and not isinstance(detail["input"], str)
    return "string_type" if is_other_type else detail["type"]


def _refusal(body: type[NativeBody], detail: ErrorDetails, parsed: Json) -> InvalidRequest:
    if detail["type"] == "fault":
        name, message = detail["ctx"]["field"], detail["ctx"]["message"]
        return InvalidRequest(f"Parameter: {name} {message}.", name)
    name, kind = str(detail["loc"][0]), _kind(detail)
    if kind in NO_TEXT:
        message = "required 'text' parameter is either empty or not provided"
    elif kind in EXPECTED:
        expected = EXPECTED["list_type" if name == "stop_sequence" else kind]
        json_type = JSON_TYPES.get(type(parsed[name]), "object")
        message = f"Parameter: {name} is type={json_type}, expected {expected}"
    elif kind == "string_pattern_mismatch":
        message = (
            f"Parameter: {name} must be 1 to {MAX_SESSION_ID_CHARS} printable ASCII characters "
            "without spaces."
        )
    elif kind == "string_too_long":
        message = f"Parameter: {name} has a string of more than {MAX_STOP_CHARS} characters."
    elif kind == "literal_error":
        value, choices = shortened(detail["input"]), detail["ctx"]["expected"]
        message = f"Parameter: {name}={value} is not served; give {choices}."
    else:
        is_list = kind == "too_long"
        value = f"{detail['ctx']['actual_length']} strings" if is_list else detail["input"]
        bounds = f"0 <= {name} <= {MAX_STOP_STRINGS}" if is_list else _bounds(body, name)
        message = f"Parameter: {name}={shortened(value)} is outside bounds, {bounds}."
    return InvalidRequest(message, name)


def _bounds(body: type[NativeBody], name: str) -> str:
    """Returns a message's text for the bounds declared at the field."""
    metadata = body.model_fields[name].metadata
    bounds = {key: getattr(m, key) for m in metadata for key in ("ge", "le") if hasattr(m, key)}
    or_zero = ", or 0" if any(isinstance(each, WrapValidator) for each in metadata) else ""
    return f"{bounds['ge']} <= {name} <= {bounds['le']}{or_zero}"
