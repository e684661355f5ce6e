"""Serves `/openapi.json` of a Flask application, and its page at `/docs`. The page's script comes
from an installed package, not from another host."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from flask import Blueprint, Flask, Response
from flask_swagger_ui import get_swaggerui_blueprint

from common.openapi_document import Application, Rule, describe
from common.operations import operation, operation_of

DOCUMENT_PATH = "/openapi.json"
PAGE_PATH = "/docs"
NOT_DESCRIBED = frozenset({"HEAD", "OPTIONS"})  # Flask answers these by itself


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
