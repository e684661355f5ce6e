"""OpenAI's generation routes under `/v1`, for clients of OpenAI and vLLM, and the list of models.

A completion is one or several generations; the answer is made of their texts.
"""

import time
from contextlib import ExitStack

from flask import Blueprint, Response, g, jsonify, request

from common.errors import Error
from common.operations import operation
from inference_api.anthropic.model_page import (
    VERSION_HEADER,
    ModelInfo,
    ModelPage,
    info_of,
    page_of,
)
from inference_api.bundle_file import ROUTED
from inference_api.generation.chat import ChatAnswer, plain_reader
from inference_api.generation.streaming import Generations
from inference_api.openai.answers import ChatCompletion, Completion
from inference_api.openai.choices import ChoicesWriter
from inference_api.openai.model_cards import ExpertModelCard, ModelCard, ModelList, expert_card
from inference_api.openai.requests import ChatBody, CompletionBody
from inference_api.routes.caller import caller_of_request, read
from inference_api.routes.chats import Chats, responded
from inference_api.routes.chosen_model import Chosen, ModelChoice
from inference_api.routes.errors import ROW_REFUSALS
from inference_api.routes.tokenize import encoded, prompt_is_called
from inference_api.scheduling.decode_backend import DecodeBackend
from inference_api.scheduling.served_model import ServedModel
from inference_api.settings import Settings

BY_VERSION = {VERSION_HEADER: {"type": "string", "description": "Asks for Anthropic's form."}}


def create_blueprint(
    generations: Generations,
    backend: DecodeBackend,
    settings: Settings,
    choice: ModelChoice,
    chats: Chats,
) -> Blueprint:
    blueprint = Blueprint("openai", __name__)
    views = _Views(generations, backend, settings, choice, chats)
    blueprint.get("/v1/models")(views.models)
    blueprint.get("/v1/models/<path:model>")(views.model)
    blueprint.post("/v1/completions")(views.completions)
    blueprint.post("/v1/chat/completions")(views.chat_completions)
    return blueprint


class _Views:
    """The views and what they share. Immutable; any request thread."""

    def __init__(
        self,
        generations: Generations,
        backend: DecodeBackend,
        settings: Settings,
        choice: ModelChoice,
        chats: Chats,
    ) -> None:
        self._choice = choice
        self._chats = chats
        self._generations = generations
        self._backend = backend
        self._settings = settings
        self._started_at = int(time.time())

    @operation(
        "The models served; of a bundle's experts also their state.",
        {200: ModelList | ModelPage},
        headers=BY_VERSION,
    )
    def models(self) -> Response:
        routed = (ROUTED,) if self._settings.has_router else ()
        cards = [self._card(name) for name in (*self._settings.served_names, *routed)]
        return _by_version(ModelList(object="list", data=cards), page_of(cards))

    @operation(
        "One of the models served.",
        {200: ModelCard | ExpertModelCard | ModelInfo, 404: Error},
        headers=BY_VERSION,
    )
    def model(self, model: str) -> Response:
        if model != ROUTED or not self._settings.has_router:
            self._settings.name_of(model)
        card = self._card(model)
        return _by_version(card, info_of(card))

    @operation(
        "Answer a conversation.",
        {200: (ChatCompletion, "text/event-stream"), **ROW_REFUSALS},
        ChatBody,
    )
    def chat_completions(self) -> Response:
        body = read(ChatBody)
        created_at = int(time.time())

        def writer_of(chosen: Chosen, model: ServedModel) -> ChoicesWriter:
            return ChoicesWriter(
                body, model.tokenizer, chosen.shown, chosen.route, g.request_id, created_at
            )

        return self._chats.respond(body.chat(), writer_of, bool(body.stream))

    @operation(
        "Continue prompts.",
        {200: (Completion, "text/event-stream"), **ROW_REFUSALS},
        CompletionBody,
    )
    def completions(self) -> Response:
        body = read(CompletionBody)
        prompts, params = body.prompts(), body.params()
        first_texts = [each for each in prompts[:1] if isinstance(each, str)]
        chosen = self._choice.of(body.model, first_texts)
        self._backend.check_admission()
        model = self._backend.served[chosen.name]
        with ExitStack() as stack:
            with (
                self._generations.admitted(model.name, caller_of_request()) as admitted,
                prompt_is_called("prompt"),
            ):
                token_ids = [encoded(prompt, model, "prompt") for prompt in prompts]
                requests = [(prompt, each) for prompt in token_ids for each in params]
                generations = self._generations.begin_all(admitted, requests)
            for generation in generations:
                stack.callback(generation.close)
            answers = [ChatAnswer(generation, plain_reader()) for generation in generations]
            writer = ChoicesWriter(
                body, model.tokenizer, chosen.shown, chosen.route, g.request_id, int(time.time())
            )
            num_tokens = sum(map(len, token_ids))
            return responded(stack, writer, answers, num_tokens, chosen.headers, bool(body.stream))

    def _card(self, name: str) -> ModelCard | ExpertModelCard:
        card = ModelCard(id=name, object="model", created=self._started_at, owned_by="hearth")
        if name != ROUTED and (served := self._backend.served):
            model = served[self._settings.name_of(name)]
            card["max_model_len"] = model.max_seq_len
            if model.sampling_defaults:
                card["default_sampling_params"] = dict(model.sampling_defaults)
        bundle, residents = self._settings.bundle, self._backend.bundle
        if bundle is None or residents is None or name == ROUTED:
            return card
        expert = bundle.expert(self._settings.name_of(name))
        context = self._backend.served[expert.name].max_seq_len
        rows_max = expert.rows.max or self._settings.user_rows
        state = residents.snapshot.experts[expert.name]
        return {**card, **expert_card(expert, context, rows_max, state)}


def _by_version(openais: object, anthropics: object) -> Response:
    response = jsonify(anthropics if VERSION_HEADER in request.headers else openais)
    response.vary.add(VERSION_HEADER)
    return response
