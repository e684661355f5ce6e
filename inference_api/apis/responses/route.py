"""OpenAI's `/v1/responses`, which keeps nothing between calls."""

import time

from flask import Blueprint, Response, g, jsonify

from common.operations import operation
from inference_api.apis.answering import Answering
from inference_api.apis.openai.logprobs import Logprobs
from inference_api.apis.responses.answer import InputTokens, ResponseAnswer, ResponseWriter
from inference_api.apis.responses.body import ResponsesBody
from inference_api.web.caller import read
from inference_api.web.errors import REFUSALS, ROW_REFUSALS


def create_blueprint(answering: Answering) -> Blueprint:
    blueprint = Blueprint("responses", __name__)

    @blueprint.post("/v1/responses")
    @operation(
        "Answer a conversation in items: texts, thoughts and calls of tools. Nothing is kept.",
        {200: (ResponseAnswer, "text/event-stream"), **ROW_REFUSALS},
        ResponsesBody,
    )
    def responses() -> Response:
        body = read(ResponsesBody)
        response_id, created_at = f"resp_{g.request_id}", int(time.time())
        return answering.respond(
            body.chat(),
            lambda chosen, tokenizer: ResponseWriter(
                response_id, chosen.shown, created_at, body, Logprobs(tokenizer, is_chat=True)
            ),
            bool(body.stream),
        )

    @blueprint.post("/v1/responses/input_tokens")
    @operation(
        "The number of tokens that a conversation takes, tools included.",
        {200: InputTokens, **REFUSALS},
        ResponsesBody,
    )
    def input_tokens() -> Response:
        count = answering.count(read(ResponsesBody).chat())
        return jsonify(InputTokens(object="response.input_tokens", input_tokens=count))

    return blueprint
