"""The base class of objects in request bodies, and refusals that name field, bound and remedy.

Every field of a body, at every depth, is of one of four kinds, as its class says:

* honoured: the fields of the pydantic model.
* advisory: `advisory`. It does not change which answer is right, so it is ignored and reported.
  Fields of earlier answers, which clients send back (`of_answers`), are ignored silently.
* not served: `unserved`, with its neutral values. Any other value is refused.
* unknown: all others. They are ignored and reported, too, but refused if they look like a typo.

`null` counts as absent everywhere, and so does an empty text where no text can stand, as clients
with forms send it. A whole number may be written with a fraction of 0, as in JSON Schema.
"""

import json
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from common.faults import fault_of, whole_number
from common.plain_yaml import float_of
from inference_api.errors import InvalidRequest
from inference_api.settings.model import Speculation
from inference_api.web.json_object import parse_object, shortened
from inference_api.web.left_aside import LeftAside

MAX_INTEGER = 2**31 - 1  # the highest token id or number of tokens
MAX_FAULTS = 100  # most faults examined one by one: a body can have a million

# What to do without fields that are not served on routes with tools.
REMEDIES = {
    "conversation": "leave it out and send all items in input, as nothing is kept",
    "function_call": "give tool_choice, or tool_calls in a message, which took its place",
    "functions": "give tools, which took its place",
    "previous_response_id": "leave it out and send all items in input, as nothing is kept",
}

Json = dict[str, Any]
Unserved = Mapping[str, tuple[Any, ...]]  # field -> its neutral values, which count as absent


class Body(BaseModel):
    """Base of every object in a body. Immutable."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        json_schema_extra=lambda schema, kind: _add_known_fields(schema, kind),
    )

    advisory: ClassVar[frozenset[str]] = frozenset()
    of_answers: ClassVar[frozenset[str]] = frozenset()
    unserved: ClassVar[Unserved] = {}
    also_called: ClassVar[Mapping[str, str]] = {}  # another server's name -> the field

    @model_validator(mode="before")
    @classmethod
    def _take_honoured_fields(cls, body: Any, info: ValidationInfo) -> Any:
        if not isinstance(body, dict):
            return body
        aside = info.context if isinstance(info.context, LeftAside) else LeftAside(cls)
        honoured = {field.alias or name for name, field in cls.model_fields.items()}
        texts = _fields_of_text(cls)
        kept = {}
        for name, value in body.items():
            field = cls.also_called.get(name, name)
            if value is None or name in cls.of_answers or (value == "" and field not in texts):
                continue
            if field in honoured:
                kept[field] = _with_integers(value)
            elif name in cls.unserved:
                if not any(_is_same(value, neutral) for neutral in cls.unserved[name]):
                    raise fault(name, f"is not served; {_remedy(name, cls.unserved)}")
            elif name in cls.advisory:
                aside.add(cls, name, value)
            elif (meant := aside.add_unknown(cls, name, honoured - body.keys())) is not None:
                raise fault(shortened(name), meant)
        return kept

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raises a `fault` if fields contradict each other. Checks of base classes come first."""


B = TypeVar("B", bound=Body)


def parse(kind: type[B], body: bytes, aside: LeftAside | None = None) -> B:
    """Returns the body. `aside` records what was ignored of it. Raises InvalidRequest that names
    the field."""
    try:
        return kind.model_validate(parse_object(body), context=aside or LeftAside(kind))
    except ValidationError as error:
        if error.error_count() > MAX_FAULTS:
            raise InvalidRequest(
                f"The body has {error.error_count()} faults, more than {MAX_FAULTS} are not looked "
                "at; send the fields that /openapi.json describes."
            ) from None
        details = error.errors(include_url=False)
        raise _refusal(details[0]) from None


def fault(field: str, message: str) -> PydanticCustomError:
    """Returns the error of a field, for validators of whole objects."""
    return PydanticCustomError("fault", "{message}", {"field": field, "message": message})


ANY_SIZE = BeforeValidator(float_of)  # for a float with bounds
# For a number of tokens: clients of llama.cpp send -1 to ask for as many as there is room for.
OR_ALL = BeforeValidator(lambda tokens: MAX_INTEGER if tokens == -1 else tokens)
MaxTokens = Annotated[int, Field(ge=1, le=MAX_INTEGER), OR_ALL]


RequestedSpeculation = Annotated[
    Speculation | None,
    Field(
        description="Who drafts tokens: auto, as the server does it; off, nobody; else one of the "
        "sources that the model is served with."
    ),
]


@cache
def _fields_of_text(kind: type[Body]) -> frozenset[str]:
    """Returns the fields in which an empty text is taken, or refused: required ones, and texts."""
    return frozenset(
        field.alias or name
        for name, field in kind.model_fields.items()
        if field.is_required() or _may_be_text(field.annotation)
    )


def _may_be_text(kind: Any) -> bool:
    is_of_parts = get_origin(kind) in (Annotated, Union, UnionType)
    return kind is str or (is_of_parts and any(map(_may_be_text, get_args(kind))))


def _with_integers(value: Any) -> Any:
    """Returns a number, or the numbers in lists, as integers where they are whole."""
    if isinstance(value, list) and not {float, list}.isdisjoint(map(type, value)):
        return [_with_integers(each) for each in value]
    return whole_number(value)


def _is_same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _remedy(name: str, unserved: Unserved) -> str:
    if name in REMEDIES and "tools" not in unserved:
        return REMEDIES[name]
    return " or give ".join(["leave it out", *map(json.dumps, unserved[name])])


def _add_known_fields(schema: Json, kind: type[BaseModel]) -> None:
    """Adds to a body's JSON schema the fields that `parse` accepts besides the model's own."""
    assert issubclass(kind, Body)
    fields = schema.setdefault("properties", {})
    for name in sorted(kind.advisory | kind.of_answers):
        fields[name] = {"description": "Taken and left aside."}
    for name, neutral in kind.unserved.items():
        fields[name] = {"enum": [*neutral, None], "description": "Not served."}


def _refusal(detail: ErrorDetails) -> InvalidRequest:
    field = detail.get("ctx", {}).get("field")  # comes with a `fault`
    steps = [*detail["loc"], *([] if field is None else [field])]
    # Tags of union branches, such as <text>, are no fields.
    steps = [each for each in steps if not (isinstance(each, str) and each.startswith("<"))]
    return InvalidRequest(fault_of({**detail, "loc": tuple(steps)}), shortened(steps[0]))
