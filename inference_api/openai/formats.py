"""Constraints on an answer in requests: OpenAI's `response_format`, vLLM's `structured_outputs`."""

import json
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from inference_api.bodies.fields import Body, Unserved, fault
from inference_api.request import ConstraintSpec
from inference_api.text.closed_objects import with_closed_objects


class JsonSchema(Body):
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """`json_schema` needs a schema; `json_object` is any object."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise fault("json_schema", "is missing; give it with type json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise fault("json_schema", "comes with type json_schema only; leave it out")
        return self

    def as_constraint(self) -> ConstraintSpec | None:
        if self.type == "text":
            return None
        schema = {"type": "object"} if self.json_schema is None else self.json_schema.schema_
        return _of_schema("response_format", schema)


class StructuredOutputs(Body):
    """One of the three; vLLM's field."""

    model_config = ConfigDict(protected_namespaces=())
    unserved: ClassVar[Unserved] = {
        "disable_additional_properties": (False,),
        "disable_any_whitespace": (False,),
        "disable_fallback": (False,),
        "grammar": (),
        "json_object": (False,),
        "structural_tag": (),
        "whitespace_pattern": (),
    }

    json_: dict[str, Any] | None = Field(None, alias="json")
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "StructuredOutputs":
        num_given = sum(each is not None for each in (self.json_, self.regex, self.choice))
        if num_given != 1:
            raise fault("json", f"{num_given} of json, regex and choice are given; give one")
        return self

    def as_constraint(self) -> ConstraintSpec:
        field: Final = "structured_outputs"
        if self.regex is not None:
            return ConstraintSpec(field, "regex", self.regex)
        if self.choice is not None:
            return ConstraintSpec(field, "choice", json.dumps(self.choice))
        return _of_schema(field, self.json_ or {})


def _of_schema(field: str, schema: dict[str, Any]) -> ConstraintSpec:
    return ConstraintSpec(field, "json_schema", json.dumps(with_closed_objects(schema)))
