"""The OpenAPI 3.1 description of an application, made from what its blueprints say of themselves.

Every blueprint's module has a table `OPERATIONS` beside its routes, plain data so that packages
need not share code: "VERB /rule" -> a mapping with

    summary   one line
    body      what the request holds; absent: nothing
    query     parameter name -> JSON schema
    headers   request header name -> JSON schema
    answers   status -> what the response holds

What a body or an answer holds is a pydantic model (or any type that pydantic can describe), for
JSON of that shape; a JSON schema; or a string, for text of that media type. A tuple lists several.
Pure: any thread.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, TypeAdapter

from inference_api import __version__

Json = dict[str, Any]
Operations = Mapping[str, Mapping[str, Any]]

JSON = "application/json"
EVENTS = "text/event-stream"  # described by one event
RULE_PARAMETER = re.compile(r"<(?:[a-z]+:)?(\w+)>")
REF_TEMPLATE = "#/components/schemas/{model}"
X_REQUEST_ID = {"description": "The request's id, as logs have it.", "schema": {"type": "string"}}
RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "integer"}}


class ErrorDetail(BaseModel):
    """OpenAI's shape of an error."""

    message: str
    type: str
    param: str | None
    code: str


class Error(BaseModel):
    """Every error of the inference API."""

    status_code: int
    message: str
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class Rule:
    """One verb of one of the application's URL rules."""

    verb: str
    path: str  # as in the URL map: /v1/models/<path:model>
    tag: str
    needs_token: bool

    @property
    def key(self) -> str:
        return f"{self.verb} {self.path}"


def describe(rules: Iterable[Rule], operations: Operations) -> Json:
    """The document. Rules that no table describes are left out; so are tables' other entries."""
    described = [(rule, operations[rule.key]) for rule in rules if rule.key in operations]
    schemas = _Schemas([operation for _, operation in described])
    paths: dict[str, Json] = {}
    for rule, operation in described:
        path = RULE_PARAMETER.sub(r"{\1}", rule.path)
        paths.setdefault(path, {})[rule.verb.lower()] = _operation(rule, operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hearth",
            "version": __version__,
            "description": "A self-hosted LLM serving stack that measures itself and plans its "
            "own hardware.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The JSON schemas of all types that the operations name, made in one go so that equal names
    of different packages stay apart."""

    def __init__(self, operations: Iterable[Mapping[str, Any]]) -> None:
        adapters: dict[tuple[Any, Any], TypeAdapter[Any]] = {(Error, "serialization"): _ERROR}
        for operation in operations:
            bodies = [(kind, "validation") for kind in _each(operation.get("body", ()))]
            answers = [
                (kind, "serialization")
                for content in operation["answers"].values()
                for kind in _each(content)
            ]
            for kind, mode in bodies + answers:
                if not isinstance(kind, str | dict):
                    adapters[kind, mode] = TypeAdapter(kind)
        inputs = [(kind, mode, adapter) for (kind, mode), adapter in adapters.items()]
        self._by_type, common = TypeAdapter.json_schemas(inputs, ref_template=REF_TEMPLATE)
        self.definitions: Json = common.get("$defs", {})

    def content(self, held: Any, mode: Any) -> Json:
        """OpenAPI's media types for what an operation says that a body or an answer holds."""
        by_media_type: dict[str, list[Json]] = {}
        for kind in _each(held):
            if isinstance(kind, str):
                by_media_type.setdefault(kind, []).append(_EVENT if kind == EVENTS else _TEXT)
            else:
                schema = kind if isinstance(kind, dict) else self._by_type[kind, mode]
                by_media_type.setdefault(JSON, []).append(schema)
        return {
            media_type: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
            for media_type, schemas in by_media_type.items()
        }


_ERROR: TypeAdapter[Any] = TypeAdapter(Error)
_TEXT: Json = {"type": "string"}
_EVENT: Json = {"type": "object", "properties": {"event": _TEXT, "data": _TEXT}}


def _each(held: Any) -> tuple[Any, ...]:
    return held if isinstance(held, tuple) else (held,)


def _operation(rule: Rule, operation: Mapping[str, Any], schemas: _Schemas) -> Json:
    answers = dict(operation["answers"])
    # Whatever the route, these are rendered for the whole application.
    common = [
        *[401] * rule.needs_token,
        *[404] * bool(RULE_PARAMETER.search(rule.path)),  # a line break is in no rule's path
        *[413] * ("body" in operation),
        500,
    ]
    for status in common:
        answers[status] = (*_each(answers.get(status, ())), Error)
    described: Json = {
        "operationId": re.sub(r"\W+", "_", rule.key).strip("_").lower(),
        "summary": operation["summary"],
        "tags": [rule.tag],
        "parameters": _parameters(rule, operation),
        "responses": {
            str(status): _response(status, held, schemas)
            for status, held in sorted(answers.items())
        },
    }
    if "body" in operation:
        content = schemas.content(operation["body"], "validation")
        described["requestBody"] = {"required": True, "content": content}
    if rule.needs_token:
        described["security"] = [{"token": []}]
    return described


def _parameters(rule: Rule, operation: Mapping[str, Any]) -> list[Json]:
    in_path = RULE_PARAMETER.findall(rule.path)
    text = {"type": "string", "minLength": 1}
    return [
        *({"name": name, "in": "path", "required": True, "schema": text} for name in in_path),
        *(
            {"name": name, "in": where, "required": False, "schema": schema}
            for where in ("query", "header")
            for name, schema in operation.get(_TABLE_OF[where], {}).items()
        ),
    ]


_TABLE_OF = {"query": "query", "header": "headers"}


def _response(status: int, held: Any, schemas: _Schemas) -> Json:
    headers = {"X-Request-Id": X_REQUEST_ID}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = RETRY_AFTER
    response: Json = {"description": HTTPStatus(status).phrase, "headers": headers}
    if content := schemas.content(held, "serialization"):
        response["content"] = content
    return response
