"""OpenAI's generation routes under `/v1`, for clients of OpenAI and vLLM.

A call runs one or several generations, whose texts make the answer.
"""

import time

from flask import Blueprint, Response, g

from common.operations import operation
from inference_api.apis.answering import Answering, encoded
from inference_api.apis.chat import ChatAnswer, plain_reader
from inference_api.apis.openai.bodies import ChatBody, CompletionBody
from inference_api.apis.openai.choices import ChoicesWriter
from inference_api.apis.openai.wire import ChatCompletion, Completion
from inference_api.core.generations import Requests
from inference_api.core.served_model import ServedModel
from inference_api.web.caller import read
from inference_api.web.errors import ROW_REFUSALS

DEPLOYMENT = "/openai/deployments/<path:model>"  # where Azure's clients name the model


def create_blueprint(answering: Answering) -> Blueprint:
    blueprint = Blueprint("openai", __name__)

    @blueprint.post("/v1/chat/completions")
    @blueprint.post(f"{DEPLOYMENT}/chat/completions")
    @operation(
        "Answer a conversation.",
        {200: (ChatCompletion, "text/event-stream"), **ROW_REFUSALS},
        ChatBody,
    )
    def chat_completions(model: str | None = None) -> Response:
        body = read(ChatBody, model=model)
        identity = g.request_id, int(time.time())
        return answering.respond(
            body.chat(),
            lambda chosen, tokenizer: ChoicesWriter(body, tokenizer, chosen, *identity),
            bool(body.stream),
        )

    @blueprint.post("/v1/completions")
    @blueprint.post(f"{DEPLOYMENT}/completions")
    @operation(
        "Continue prompts.",
        {200: (Completion, "text/event-stream"), **ROW_REFUSALS},
        CompletionBody,
    )
    def completions(model: str | None = None) -> Response:
        body = read(CompletionBody, model=model)
        prompts, params = body.prompts(), body.params()
        texts = [each for each in prompts[:1] if isinstance(each, str)]
        chosen, served = answering.choice.served(body.model, texts)
        writer = ChoicesWriter(body, served.tokenizer, chosen, g.request_id, int(time.time()))

        def requests(model: ServedModel) -> Requests:
            token_ids = [encoded(prompt, model, "prompt") for prompt in prompts]
            return [(prompt, each) for prompt in token_ids for each in params]

        with answering.reply(chosen, requests, "prompt") as reply:
            answers = [ChatAnswer(generation, plain_reader()) for generation in reply.generations]
            num_tokens = sum(len(each.prompt_tokens) for each in reply.generations[:: len(params)])
            return reply.respond(writer, answers, num_tokens, bool(body.stream))

    return blueprint
