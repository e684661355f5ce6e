"""JSON as the reference reads and writes it. Pure: any thread.

Reading: keys in any case, unknown keys ignored, null and absent = default, the last of several
equal keys wins, bytes after the first value ignored; 2.0 is no integer and "2" no number.
Writing: 4 spaces, `<`, `>` and `&` escaped so that an answer may stand in an HTML page.
"""

import json
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from optimizer.errors import Fault, InvalidRequest

MAX_FAULTS = 100  # listed in one answer; a body with more is not read any better for it

_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


class Body(BaseModel):
    """Base of everything that crosses the wire. Immutable."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_name=True,
        serialize_by_alias=True,
    )

    _names_by_lower: ClassVar[dict[str, str]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        aliases = {name: field.alias or name for name, field in cls.model_fields.items()}
        # Field names too: that is how our own code builds these.
        cls._names_by_lower = aliases | {alias.lower(): alias for alias in aliases.values()}

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, value: Any) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict):
            return value
        names = cls._names_by_lower
        return {
            names[lower]: entry
            for key, entry in value.items()
            if entry is not None and (lower := key.lower()) in names
        }

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read a request body. Raises InvalidRequest with every fault and its path."""
        return read(cls, decode(raw))

    def dump(self) -> dict[str, Any]:
        """As plain JSON values; extensions that were not given are left out."""
        return self.model_dump(exclude_none=True)


BodyT = TypeVar("BodyT", bound=Body)


def read(model: type[BodyT], value: object) -> BodyT:
    """Validate a decoded JSON value. Raises InvalidRequest with every fault and its path."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        faults = [Fault(_path(d["loc"]), _sentence(d["msg"])) for d in details[:MAX_FAULTS]]
        raise InvalidRequest(faults) from error


def decode(raw: bytes) -> object:
    """The first JSON value of a body. Raises InvalidRequest."""
    try:
        text = raw.decode("utf-8-sig").lstrip(" \t\r\n")
        if not text:
            _reject("the body is empty; send a JSON object")
        value: object
        value, _ = json.JSONDecoder(parse_constant=_reject_constant).raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest([Fault("", f"malformed JSON: {error}")]) from error
    return value


def encode(value: object) -> str:
    """A JSON document. Raises ValueError on NaN and infinities, which JSON cannot hold."""
    return json.dumps(value, indent=4, allow_nan=False, ensure_ascii=False).translate(_ESCAPES)


def encode_compact(value: object) -> str:
    """The same value on one line, for stores and ETags: equal values give equal text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _reject(message: str) -> NoReturn:
    raise InvalidRequest([Fault("", message)])


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _sentence(message: str) -> str:
    """pydantic's message, in the words of JSON, without the prefix of our own validators'."""
    message = message.removeprefix("Value error, ")
    if message.startswith("Input should be a valid dictionary"):
        return "Input should be an object"
    return message
