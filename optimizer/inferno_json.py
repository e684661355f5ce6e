"""JSON as the reference reads and writes it. Pure: any thread.

Reading: keys in any case; null and absent mean the default; the last of several equal keys wins;
bytes after the first value are ignored; 2.0 is no integer and "2" no number. Unlike in the
reference, unknown keys are refused, because a misspelt load would count as 0. NaN and numbers
beyond all bounds are read, so that only the field they stand for is refused.
Writing: 4 spaces, with `<`, `>` and `&` escaped so that an answer may be in an HTML page.
"""

import json
from enum import Enum, auto
from typing import Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel

from common.faults import MAX_FAULTS, MAX_SHOWN, message_of, path_of
from optimizer.errors import Fault, InvalidRequest

MAX_ENTRIES = 100_000  # in a list or object; each may be a fault, which takes a kilobyte


class Reading(Enum):
    """How strictly a body is read. Given as the context of a validation."""

    STRICT = auto()  # unknown keys are refused
    RECORD = auto()  # from a store: unknown keys are ignored, because another version may know them
    REFERENCE = auto()  # unknown keys are ignored; loads are refused where the reference does


_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


class Body(BaseModel):
    """Base class of all objects in requests and answers. Immutable."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
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
        # Field names, too, because our own code builds these objects by them.
        cls._names_by_lower = aliases | {alias.lower(): alias for alias in aliases.values()}

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict):
            return value
        for key, entry in [("its keys", value), *value.items()]:
            if isinstance(entry, list | dict) and len(entry) > MAX_ENTRIES:
                raise ValueError(
                    f"{key[:MAX_SHOWN]} has {len(entry)} entries; give {MAX_ENTRIES} or fewer"
                )
        names = cls._names_by_lower
        entries = {key: entry for key, entry in value.items() if entry is not None}
        if info.context in (Reading.RECORD, Reading.REFERENCE):
            entries = {key: entry for key, entry in entries.items() if key.lower() in names}
        return {names.get(key.lower(), key): entry for key, entry in entries.items()}

    def dump(self) -> dict[str, Any]:
        """Returns plain JSON values, without extensions that were not given."""
        return self.model_dump(exclude_none=True)


BodyT = TypeVar("BodyT", bound=Body)

MAX_DIGITS = 4000  # below Python's own limit of 4300


def read(model: type[BodyT], value: object, reading: Reading = Reading.STRICT) -> BodyT:
    """Validates a decoded JSON value. Raises InvalidRequest with every fault and its path."""
    try:
        return model.model_validate(value, context=reading)
    except ValidationError as error:
        if (count := error.error_count()) > MAX_ENTRIES:
            raise InvalidRequest([Fault("", f"{count} faults; send fewer entries")]) from None
        details = error.errors(include_url=False)[:MAX_FAULTS]
        faults = [
            Fault(path_of(each["loc"]), message_of(each, model, "the body")) for each in details
        ]
        raise InvalidRequest(faults) from error


def decode(raw: bytes) -> object:
    """Returns the first JSON value of a body. Raises InvalidRequest."""
    try:
        text = raw.decode("utf-8-sig").lstrip(" \t\r\n")
        if not text:
            raise InvalidRequest([Fault("", "the body is empty; send a JSON object")])
        value: object
        decoder = json.JSONDecoder(parse_int=_integer)
        value, _ = decoder.raw_decode(text)
    except RecursionError as error:
        raise InvalidRequest([Fault("", "the body is nested too deeply")]) from error
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is no UTF-8; send JSON in UTF-8, not compressed"
        raise InvalidRequest([Fault("", f"malformed JSON: {message}")]) from error
    except ValueError as error:
        raise InvalidRequest([Fault("", f"malformed JSON: {error}")]) from error
    return value


def encode(value: object) -> str:
    """Returns a JSON document. Raises ValueError on NaN and infinities, which JSON cannot hold."""
    return json.dumps(value, indent=4, allow_nan=False, ensure_ascii=False).translate(_ESCAPES)


def encode_compact(value: object) -> str:
    """Returns the same value on one line, for stores and ETags: equal values give equal text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; give {MAX_DIGITS} or fewer")
    return int(digits)
