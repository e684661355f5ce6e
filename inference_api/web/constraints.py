"""Bounds on the constraints of answers, checked before compiling, because a compiler follows
nesting and references by recursion."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from inference_api.errors import InvalidRequest
from inference_api.request import ConstraintSpec
from inference_api.text.closed_objects import with_closed_objects
from inference_api.tools.values import is_deeper_than
from inference_api.web.json_object import has_infinity, parse_object, widest_object

MAX_TEXT_BYTES = 64 * 1024  # for a regular expression, or for all choices together
MAX_GRAMMAR_BYTES = 32 * 1024
MAX_RULES = 256  # most rules of a grammar; a chain of a few thousand overflows the compiler's stack
MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_MEMBERS = 500  # compile time grows with the square of optional properties


def schema_fault(schema: dict[str, Any]) -> str | None:
    """Returns the fault of a schema, with its remedy, or None."""
    if is_deeper_than(schema, MAX_SCHEMA_DEPTH):
        return f"is nested more than {MAX_SCHEMA_DEPTH} levels deep; flatten it"
    if (widest := widest_object(schema)) > MAX_MEMBERS:
        return f"has an object of {widest} members; give {MAX_MEMBERS} or fewer"
    if has_infinity(schema):
        return "has a number beyond any float; give one of at most 1e308"
    return None


def schema_constraint(field: str, schema: dict[str, Any], is_strict: bool = True) -> ConstraintSpec:
    """Returns the constraint for JSON of this schema; `field` is the body's field for messages."""
    text = json.dumps(with_closed_objects(schema))
    return ConstraintSpec(field, "json_schema", text, is_strict=is_strict)


def _bounded(text: str, most: int = MAX_TEXT_BYTES) -> str:
    if (num_bytes := len(text.encode())) > most:
        raise _out_of_bounds(f"has {num_bytes} bytes; give {most} or fewer")
    return text


def _bounded_choices(texts: list[str]) -> list[str]:
    _bounded("".join(texts))
    return texts


def _bounded_grammar(text: str) -> str:
    _bounded(text, MAX_GRAMMAR_BYTES)
    # In Lark and in GBNF each rule begins on a new line that has a colon.
    num_rules = sum(":" in line for line in text.splitlines())
    if num_rules > MAX_RULES:
        raise _out_of_bounds(
            f"has {num_rules} lines with colons, as rules begin; give {MAX_RULES} or fewer"
        )
    return text


def _bounded_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if (found := schema_fault(schema)) is not None:
        raise _out_of_bounds(found)
    _bounded(json.dumps(schema), MAX_SCHEMA_BYTES)
    return schema


def _parsed_schema(schema: object) -> object:
    if not isinstance(schema, str):
        return schema
    try:
        return parse_object(_bounded(schema, MAX_SCHEMA_BYTES).encode())
    except InvalidRequest:
        raise _out_of_bounds("is a text and no JSON object; give a schema") from None


def _out_of_bounds(message: str) -> PydanticCustomError:
    return PydanticCustomError("out_of_bounds", "{message}", {"message": message})


_Text = Annotated[str, Field(min_length=1)]
Regex = Annotated[_Text, AfterValidator(_bounded)]
Choices = Annotated[list[_Text], Field(min_length=1), AfterValidator(_bounded_choices)]
ClientGrammar = Annotated[_Text, AfterValidator(_bounded_grammar)]
Schema = Annotated[dict[str, Any], AfterValidator(_bounded_schema)]
SchemaOrText = Annotated[
    Schema, BeforeValidator(_parsed_schema, json_schema_input_type=dict[str, Any] | str)
]
