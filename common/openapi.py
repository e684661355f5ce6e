"""Makes the OpenAPI 3.1 document of a Flask application from the operations of its views, and
serves it at `/openapi.json`, and as a page at `/docs`. The page's script comes from an installed
package, not from another host."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from http import HTTPStatus
from typing import Any

from flask import Blueprint, Flask, Response
from flask_swagger_ui import get_swaggerui_blueprint
from pydantic import TypeAdapter

from common import __version__
from common.operations import Content, Operation, operation, operation_of

Json = dict[str, Any]

JSON = "application/json"
EVENTS = "text/event-stream"  # its schema describes one event
RULE_PARAMETER = re.compile(r"<(?:[a-z]+:)?(\w+)>")
REF_TEMPLATE = "#/components/schemas/{model}"
DOCUMENT_PATH = "/openapi.json"
PAGE_PATH = "/docs"
NOT_DESCRIBED = frozenset({"HEAD", "OPTIONS"})  # Flask answers these by itself


@dataclass(frozen=True, slots=True)
class Rule:
    """One method of one of the application's URL rules."""

    verb: str
    path: str  # as in the URL map: /v1/models/<path:model>
    tag: str
    needs_token: bool
    operation: Operation

    @property
    def key(self) -> str:
        return f"{self.verb} {self.path}"

    @property
    def has_parameters(self) -> bool:
        return RULE_PARAMETER.search(self.path) is not None


@dataclass(frozen=True, slots=True)
class Application:
    """The parts of the document that do not depend on a route.

    `failures` returns the error answers of a rule by status, besides those of its view. `headers`
    returns the headers of every answer with a status, in OpenAPI's format.
    """

    title: str
    description: str
    failures: Callable[[Rule], Mapping[int, Content]]
    headers: Callable[[int], Mapping[str, Json]] = lambda _: {}


def describe(application: Application, rules: Iterable[Rule]) -> Json:
    """Returns the OpenAPI document."""
    rules = [_with_failures(rule, application.failures(rule)) for rule in rules]
    schemas = _Schemas([rule.operation for rule in rules])
    paths: dict[str, Json] = {}
    for rule in rules:
        path = RULE_PARAMETER.sub(r"{\1}", rule.path)
        described = _operation(rule, schemas, application.headers)
        paths.setdefault(path, {})[rule.verb.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": application.title,
            "version": __version__,
            "description": application.description,
        },
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _with_failures(rule: Rule, failures: Mapping[int, Content]) -> Rule:
    answers = dict(rule.operation.answers)
    for status, content in failures.items():
        listed = _each(answers.get(status))
        answers[status] = (*listed, *(each for each in _each(content) if each not in listed))
    return replace(rule, operation=replace(rule.operation, answers=answers))


class _Schemas:
    """The JSON schemas of all types in operations, made together so that names do not collide."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        adapters: dict[tuple[Any, Any], TypeAdapter[Any]] = {}
        for each in operations:
            bodies = [(kind, "validation") for kind in _each(each.body)]
            answers = [
                (kind, "serialization")
                for content in each.answers.values()
                for kind in _each(content)
            ]
            for kind, mode in bodies + answers:
                if not isinstance(kind, str | dict):
                    adapters[kind, mode] = TypeAdapter(kind)
        inputs = [(kind, mode, adapter) for (kind, mode), adapter in adapters.items()]
        self._by_type, common = TypeAdapter.json_schemas(inputs, ref_template=REF_TEMPLATE)
        self.definitions: Json = common.get("$defs", {})

    def content(self, content: Content | None, mode: Any) -> Json:
        """Returns the media types of a body or an answer, in OpenAPI's format."""
        by_media_type: dict[str, list[Json]] = {}
        for kind in _each(content):
            if isinstance(kind, str):
                by_media_type.setdefault(kind, []).append(_EVENT if kind == EVENTS else _TEXT)
            else:
                schema = kind if isinstance(kind, dict) else self._by_type[kind, mode]
                by_media_type.setdefault(JSON, []).append(schema)
        return {
            media_type: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
            for media_type, schemas in by_media_type.items()
        }


_TEXT: Json = {"type": "string"}
_EVENT: Json = {"type": "object", "properties": {"event": _TEXT, "data": _TEXT}}


def _each(content: Content | None) -> tuple[Content, ...]:
    if content is None:
        return ()
    return content if isinstance(content, tuple) else (content,)


def _operation(rule: Rule, schemas: _Schemas, headers: Callable[[int], Mapping[str, Json]]) -> Json:
    described: Json = {
        "operationId": re.sub(r"\W+", "_", rule.key).strip("_").lower(),
        "summary": rule.operation.summary,
        "tags": [rule.tag],
        "parameters": _parameters(rule),
        "responses": {
            str(status): _response(status, content, schemas, headers(status))
            for status, content in sorted(rule.operation.answers.items())
        },
    }
    if rule.operation.body is not None:
        content = schemas.content(rule.operation.body, "validation")
        described["requestBody"] = {"required": True, "content": content}
    if rule.needs_token:
        described["security"] = [{"token": []}]
    return described


def _parameters(rule: Rule) -> list[Json]:
    text = {"type": "string", "minLength": 1}
    in_path = dict.fromkeys(RULE_PARAMETER.findall(rule.path), text)
    by_place = {"path": in_path, "query": rule.operation.query, "header": rule.operation.headers}
    return [
        {"name": name, "in": place, "required": place == "path", "schema": schema}
        for place, schemas in by_place.items()
        for name, schema in schemas.items()
    ]


def _response(
    status: int, content: Content, schemas: _Schemas, headers: Mapping[str, Json]
) -> Json:
    response: Json = {"description": HTTPStatus(status).phrase}
    if headers:
        response["headers"] = dict(headers)
    if media_types := schemas.content(content, "serialization"):
        response["content"] = media_types
    return response


def add_description(
    app: Flask, application: Application, needs_token: Callable[[str], bool] = lambda _: False
) -> None:
    """Adds both routes to `app`. They describe the routes that exist at the first request.
    `needs_token` returns whether the application checks a bearer token for a rule's path."""
    blueprint = Blueprint("openapi", __name__)

    @cache
    def document() -> str:
        return json.dumps(describe(application, rules_of(app, needs_token)))

    @blueprint.get(DOCUMENT_PATH)
    @operation("This description.", {200: dict[str, Any]})
    def openapi() -> Response:
        return Response(document(), content_type="application/json")

    app.register_blueprint(blueprint)
    page = {"app_name": application.title, "validatorUrl": None}  # the validator is another host
    app.register_blueprint(get_swaggerui_blueprint(PAGE_PATH, DOCUMENT_PATH, page))
    operation("This description as a page; its scripts and styles.", {200: ("text/html", "*/*")})(
        app.view_functions["swagger_ui.show"]
    )


def rules_of(app: Flask, needs_token: Callable[[str], bool]) -> Iterator[Rule]:
    """Returns every method of every described URL rule, in the order of paths."""
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: rule.rule):
        described = operation_of(app.view_functions[rule.endpoint])
        if described is None:
            continue
        tag = rule.endpoint.partition(".")[0]
        for verb in sorted((rule.methods or set()) - NOT_DESCRIBED):
            yield Rule(verb, rule.rule, tag, needs_token(rule.rule), described)
