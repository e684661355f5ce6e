"""Anthropic's `/v1/messages`, for its clients."""

from flask import Blueprint, Response, g, jsonify

from common.errors import Error, MessagesError, error_body
from common.operations import operation
from inference_api.apis.answering import Answering
from inference_api.apis.anthropic.answer import MessageAnswer, MessageWriter, TokenCount
from inference_api.apis.anthropic.body import CountBody, MessagesBody
from inference_api.web.caller import read
from inference_api.web.errors import REFUSALS, ROW_REFUSALS


def create_blueprint(answering: Answering) -> Blueprint:
    blueprint = Blueprint("messages", __name__)

    @blueprint.post("/v1/messages")
    @operation(
        "Answer a conversation in blocks, as Anthropic's API does: texts, thoughts, calls.",
        {200: (MessageAnswer, "text/event-stream"), **dict.fromkeys(ROW_REFUSALS, MessagesError)},
        MessagesBody,
    )
    def messages() -> Response:
        body = read(MessagesBody)
        return answering.respond(
            body.chat(),
            lambda chosen, _: MessageWriter(g.request_id, chosen.shown),
            bool(body.stream),
        )

    @blueprint.post("/v1/messages/count_tokens")
    @operation(
        "The number of tokens that a conversation takes, tools included.",
        {200: TokenCount, **dict.fromkeys(REFUSALS, MessagesError)},
        CountBody,
    )
    def count_tokens() -> Response:
        return jsonify(TokenCount(input_tokens=answering.count(read(CountBody).chat())))

    @blueprint.post("/api/event_logging/<path:name>")
    @operation("What clients of Anthropic tell of themselves; it is not read.", {404: Error})
    def event_logging(name: str) -> tuple[Response, int]:
        """Accepts clients' telemetry and drops it, so that they report no failure."""
        return jsonify(error_body(404, f"{name}: nothing is kept here.", "not_found")), 404

    return blueprint
