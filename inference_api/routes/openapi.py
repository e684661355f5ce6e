"""`/openapi.json` and its page at `/docs`, whose script comes with a package: no other host."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from flask import Blueprint, Flask, Response
from flask_swagger_ui import get_swaggerui_blueprint

from inference_api.routes.openapi_document import Error, Operations, Rule, describe

DOCUMENT_PATH = "/openapi.json"
PAGE_PATH = "/docs"
NOT_DESCRIBED = frozenset({"HEAD", "OPTIONS"})  # Flask answers these by itself

OPERATIONS: Operations = {
    f"GET {DOCUMENT_PATH}": {
        "summary": "This description.",
        "answers": {200: dict[str, Any]},
    },
    f"GET {PAGE_PATH}/": {
        "summary": "This description as a page.",
        "answers": {200: "text/html"},
    },
    f"GET {PAGE_PATH}/<path:path>": {
        "summary": "Scripts and styles of the page.",
        "answers": {200: "*/*", 404: Error},
    },
}


def register_openapi(
    app: Flask, operations: Operations, needs_token: Callable[[str], bool]
) -> None:
    """Describe what is registered with `app` by the time somebody asks."""
    blueprint = Blueprint("openapi", __name__)
    operations = {**operations, **OPERATIONS}

    @cache
    def document() -> str:
        return json.dumps(describe(rules_of(app, needs_token), operations))

    @blueprint.get(DOCUMENT_PATH)
    def openapi() -> Response:
        return Response(document(), content_type="application/json")

    app.register_blueprint(blueprint)
    page = {"app_name": "Hearth", "validatorUrl": None}  # which would be another host
    app.register_blueprint(get_swaggerui_blueprint(PAGE_PATH, DOCUMENT_PATH, page))


def rules_of(app: Flask, needs_token: Callable[[str], bool]) -> Iterator[Rule]:
    """Every verb of every URL rule, in the order of paths."""
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: rule.rule):
        tag = rule.endpoint.partition(".")[0]
        for verb in sorted((rule.methods or set()) - NOT_DESCRIBED):
            yield Rule(verb, rule.rule, tag, needs_token(rule.rule))
