"""What each route takes and answers, as plain data for the API's description.

"VERB /rule" -> `summary`, `body`, `query` and `answers` by status; types are pydantic models or
JSON schemas, a string is text of that media type.
"""

from collections.abc import Mapping
from typing import Any

from weights.routes.answers import (
    GeneratedAnswer,
    LoggedAnswer,
    OverviewAnswer,
    PartitionAnswer,
    Problem,
    Said,
    SessionsAnswer,
    ToldAnswer,
)
from weights.schema import (
    DeleteBody,
    GenerateBody,
    LogBody,
    ObservationsBody,
    Page,
    PartitionBody,
    UpdateBody,
)

SESSION = "/weights/sessions/<path:session_id>"
PAGE = Page.model_json_schema()["properties"]
PLOT_FORMAT = {"type": "string", "enum": ["svg", "png"]}

Operation = Mapping[str, Any]


def _post(summary: str, body: Any, answer: Any, *problems: int) -> Operation:
    statuses = (*problems, 413, 422, 503)
    answers = {200: answer, **dict.fromkeys(statuses, Problem)}
    return {"summary": summary, "body": body, "answers": answers}


def _get(summary: str, answer: Any, query: Mapping[str, Any], *problems: int) -> Operation:
    answers = {200: answer, **dict.fromkeys((*problems, 422, 503), Problem)}
    return {"summary": summary, "query": query, "answers": answers}


OPERATIONS: Mapping[str, Operation] = {
    "POST /weights_update": _post("Tell a measurement.", UpdateBody, ToldAnswer, 409),
    "POST /weights_gen": _post(
        "Ask for weights to measure.", GenerateBody, GeneratedAnswer, 409
    ),
    "POST /weights_update_delete": _post("Delete a session.", DeleteBody, Said),
    "POST /weights_log": {
        "summary": "Check weights and echo them.",
        "body": LogBody,
        "answers": {200: LoggedAnswer, 413: Problem, 422: Problem},
    },
    "GET /weights/sessions": _get("All sessions, in pages.", SessionsAnswer, PAGE),
    f"GET {SESSION}": _get(
        "A session: history in pages, best, best when noise is accounted for, convergence.",
        OverviewAnswer, PAGE, 404,
    ),
    f"DELETE {SESSION}": {
        "summary": "Delete a session.",
        "answers": {200: Said, 404: Problem, 503: Problem},
    },
    f"POST {SESSION}/observations": _post(
        "Tell many measurements at once, all or none.", ObservationsBody, ToldAnswer, 409
    ),
    f"POST {SESSION}/partition": _post(
        "Weights as whole layers, in the forms that engines read.", PartitionBody,
        PartitionAnswer, 404,
    ),
    f"GET {SESSION}/plot": _get(
        "The search as a picture.", ("image/svg+xml", "image/png"), {"format": PLOT_FORMAT}, 404
    ),
}  # fmt: skip
