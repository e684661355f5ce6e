"""`/openapi.json` and `/docs` of the API: the parts that all routes share."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from common.errors import Error, MessagesError, is_of_messages
from common.openapi import Application, Rule
from common.operations import Content
from inference_api.agents import table
from inference_api.apis.field_table import field_tables

X_REQUEST_ID = {"description": "The request's id, as logs have it.", "schema": {"type": "string"}}
RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "integer"}}


def _failures(rule: Rule) -> Mapping[int, Content]:
    statuses = [
        *[401] * rule.needs_token,
        *[404] * rule.has_parameters,  # no rule matches a path with a line break
        *[413] * (rule.operation.body is not None),
        500,
    ]
    return dict.fromkeys(statuses, MessagesError if is_of_messages(rule.path) else Error)


def _headers(status: int) -> Mapping[str, dict[str, Any]]:
    headers: dict[str, dict[str, Any]] = {"X-Request-Id": X_REQUEST_ID}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = RETRY_AFTER
    return headers


API = Application(
    title="Hearth",
    description=(
        "A self-hosted LLM serving stack that measures itself and plans its own hardware.\n\n"
        f"Use it from coding agents and chat programs:\n\n{table()}\n\n"
        "What becomes of every field of a body:\n\n" + "\n".join(field_tables())
    ),
    failures=_failures,
    headers=_headers,
)
