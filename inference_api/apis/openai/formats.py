"""Fields that constrain an answer: OpenAI's `response_format`, vLLM's `structured_outputs`."""

import json
from dataclasses import replace
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from inference_api.errors import InvalidRequest
from inference_api.request import ConstraintSpec
from inference_api.web import constraints
from inference_api.web.fields import Body, Unserved, fault


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_: constraints.Schema = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """`json_schema` needs a schema. `json_object` is any object, or one that matches the `schema`
    which some clients send with it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: constraints.Schema | None = Field(None, alias="schema")

    def check(self) -> None:
        if self.type == "json_schema" and self.json_schema is None:
            raise fault("json_schema", "is missing; give it with type json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise fault("json_schema", "comes with type json_schema only; leave it out")

    def as_constraint(self) -> ConstraintSpec | None:
        if self.type == "text":
            return None
        schema = {"type": "object"} if self.schema_ is None else self.schema_
        named = self.json_schema
        schema, is_strict = (named.schema_, bool(named.strict)) if named else (schema, False)
        return constraints.schema_constraint("response_format", schema, is_strict)


class StructuredOutputs(Body):
    """vLLM's field: exactly one of the four."""

    model_config = ConfigDict(protected_namespaces=())
    advisory: ClassVar[frozenset[str]] = frozenset(
        {"disable_any_whitespace", "disable_fallback", "whitespace_pattern"}
    )
    unserved: ClassVar[Unserved] = {
        "disable_additional_properties": (False,),
        "json_object": (False,),
        "structural_tag": (),
    }

    json_: constraints.SchemaOrText | None = Field(None, alias="json")
    regex: constraints.Regex | None = None
    choice: constraints.Choices | None = None
    grammar: constraints.ClientGrammar | None = None

    def check(self) -> None:
        parts = (self.json_, self.regex, self.choice, self.grammar)
        num_given = sum(each is not None for each in parts)
        if num_given != 1:
            raise fault(
                "json", f"{num_given} of json, regex, choice and grammar are given; give one"
            )

    def as_constraint(self) -> ConstraintSpec:
        field: Final = "structured_outputs"
        if self.regex is not None:
            return ConstraintSpec(field, "regex", self.regex)
        if self.choice is not None:
            return ConstraintSpec(field, "choice", json.dumps(self.choice))
        if self.grammar is not None:
            return ConstraintSpec(field, "grammar", self.grammar)
        return constraints.schema_constraint(field, self.json_ or {})


class Constrained(Body):
    """Constraints of the answer; a body may use one. The last four are vLLM's old names."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: constraints.SchemaOrText | None = None
    guided_regex: constraints.Regex | None = None
    guided_choice: constraints.Choices | None = None
    guided_grammar: constraints.ClientGrammar | None = None

    def constraint(self) -> ConstraintSpec | None:
        """Raises InvalidRequest if several are given."""
        form, outputs = self.response_format, self.structured_outputs
        constraints_by_field = {
            "response_format": None if form is None else form.as_constraint(),
            "structured_outputs": None if outputs is None else outputs.as_constraint(),
            "guided_json": _guided("json", self.guided_json),
            "guided_regex": _guided("regex", self.guided_regex),
            "guided_choice": _guided("choice", self.guided_choice),
            "guided_grammar": _guided("grammar", self.guided_grammar),
        }
        found = {field: each for field, each in constraints_by_field.items() if each is not None}
        if len(found) > 1:
            *_, last = found
            raise InvalidRequest(f"Give only one of {' and '.join(found)}.", last)
        return next(iter(found.values()), None)


def _guided(kind: str, part: object) -> ConstraintSpec | None:
    if part is None:
        return None
    constraint = StructuredOutputs.model_validate({kind: part}).as_constraint()
    return replace(constraint, field=f"guided_{kind}")
