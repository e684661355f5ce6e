"""OpenAI's `/v1/responses`, which keeps nothing between calls."""

import time

from flask import Blueprint, Response, g

from common.operations import operation
from inference_api.bodies.fields import parse
from inference_api.openai.response_answers import ResponseAnswer, ResponseForm
from inference_api.openai.responses import ResponsesBody
from inference_api.routes.caller import json_body
from inference_api.routes.chats import Chats
from inference_api.routes.errors import ROW_REFUSALS


def create_blueprint(chats: Chats) -> Blueprint:
    blueprint = Blueprint("responses", __name__)

    @blueprint.post("/v1/responses")
    @operation(
        "Answer a conversation in items: texts, thoughts and calls of tools. Nothing is kept.",
        {200: (ResponseAnswer, "text/event-stream"), **ROW_REFUSALS},
        ResponsesBody,
    )
    def responses() -> Response:
        body = parse(ResponsesBody, json_body())
        created_at = int(time.time())

        def form_of(model: str) -> ResponseForm:
            return ResponseForm(f"resp_{g.request_id}", model, created_at, body)

        return chats.respond(body.chat(), form_of, streams=bool(body.stream))

    return blueprint
