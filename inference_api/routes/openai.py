"""OpenAI's routes under `/v1`: what clients of OpenAI and vLLM already know how to ask.

A completion is one or several generations; the answer is put together here from their texts.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from flask import Blueprint, Response, g, jsonify

from inference_api.decode_backend import DecodeBackend
from inference_api.errors import InvalidRequest, UnknownModel
from inference_api.openai_answers import (
    ChatCompletion,
    Completion,
    Detokenized,
    ModelCard,
    ModelList,
    Tokens,
)
from inference_api.openai_choices import CHAT, COMPLETION, Choice, Form, chunks, whole_answer
from inference_api.openai_logprobs import Logprobs
from inference_api.openai_schema import (
    ChatBody,
    ChatMessage,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    StreamOptions,
    TokenIds,
    TokenizeBody,
    parse,
)
from inference_api.openapi import Error, Operations
from inference_api.routes.caller import caller_of_request, json_body
from inference_api.routes.errors import error_body
from inference_api.routes.generate import EVENT_STREAM, STREAM_HEADERS
from inference_api.settings import Settings
from inference_api.streaming import Generations
from inference_api.tokens import Message, Tokenizer

Json = dict[str, Any]
Prompt = str | TokenIds | list[Message]

REFUSALS: dict[int, Any] = {400: Error, 404: Error, 503: Error}
OPERATIONS: Operations = {
    "GET /v1/models": {"summary": "The models served.", "answers": {200: ModelList}},
    "GET /v1/models/<path:model>": {
        "summary": "One of the models served.",
        "answers": {200: ModelCard, 404: Error},
    },
    "POST /v1/completions": {
        "summary": "Continue prompts.",
        "body": CompletionBody,
        "answers": {200: (Completion, "text/event-stream"), **REFUSALS},
    },
    "POST /v1/chat/completions": {
        "summary": "Answer a conversation.",
        "body": ChatBody,
        "answers": {200: (ChatCompletion, "text/event-stream"), **REFUSALS},
    },
    "POST /v1/tokenize": {
        "summary": "The token ids of a text or a conversation.",
        "body": TokenizeBody,
        "answers": {200: Tokens, **REFUSALS},
    },
    "POST /v1/detokenize": {
        "summary": "The text of token ids.",
        "body": DetokenizeBody,
        "answers": {200: Detokenized, **REFUSALS},
    },
}


def create_blueprint(
    generations: Generations, backend: DecodeBackend, settings: Settings
) -> Blueprint:
    blueprint = Blueprint("openai", __name__)
    views = _Views(generations, backend, settings)
    blueprint.get("/v1/models")(views.models)
    blueprint.get("/v1/models/<path:model>")(views.model)
    blueprint.post("/v1/completions")(views.completions)
    blueprint.post("/v1/chat/completions")(views.chat_completions)
    blueprint.post("/v1/tokenize")(views.tokenize)
    blueprint.post("/v1/detokenize")(views.detokenize)
    return blueprint


class _Views:
    """The views and what they share. Immutable; any request thread."""

    def __init__(
        self, generations: Generations, backend: DecodeBackend, settings: Settings
    ) -> None:
        self._generations = generations
        self._backend = backend
        self._names = settings.served_names
        self._max_choices = settings.max_input_qsize
        self._started_at = int(time.time())

    def models(self) -> Response:
        return jsonify({"object": "list", "data": [self._card(name) for name in self._names]})

    def model(self, model: str) -> Response:
        self._check_model(model)
        return jsonify(self._card(model))

    def completions(self) -> Response:
        body = parse(CompletionBody, json_body())
        return self._answer(COMPLETION, body, body.prompts())

    def chat_completions(self) -> Response:
        body = parse(ChatBody, json_body())
        return self._answer(CHAT, body, [_turns(body.messages)])

    def tokenize(self) -> Response:
        body = parse(TokenizeBody, json_body())
        self._check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("Give either prompt or messages.", "prompt")
        self._backend.check_admission()
        prompt = _turns(body.messages) if body.prompt is None else body.prompt
        tokens = self._encode(self._backend.tokenizer, prompt)
        context = self._backend.runner.max_seq_len
        return jsonify({"count": len(tokens), "max_model_len": context, "tokens": tokens})

    def detokenize(self) -> Response:
        body = parse(DetokenizeBody, json_body())
        self._check_model(body.model)
        self._backend.check_admission()
        tokens = self._known(body.tokens, "tokens")
        return jsonify({"prompt": self._backend.tokenizer.decode(tokens)})

    def _answer(self, form: Form, body: GenerationBody, prompts: Sequence[Prompt]) -> Response:
        self._check_model(body.model)
        if body.stream_options is not None and not body.stream:
            raise InvalidRequest("stream_options needs stream: true.", "stream_options")
        num_choices = body.n or 1
        if num_choices * len(prompts) > self._max_choices:
            raise InvalidRequest(
                f"{len(prompts)} prompts of {num_choices} choices are more than the "
                f"{self._max_choices} that may wait here; send them one after the other.",
                "n",
            )
        self._backend.check_admission()
        identity = {"id": form.id_prefix + g.request_id, "created": int(time.time())}
        identity["model"] = body.model
        with ExitStack() as stack:
            choices = self._begin(form, body, prompts, num_choices)
            for choice in choices:
                stack.callback(choice.generation.close)
            if not body.stream:
                return jsonify(whole_answer(form, identity, choices, num_choices))
            options = body.stream_options or StreamOptions()
            events = chunks(form, identity, choices, num_choices, options, error_body)
            response = Response(events, content_type=EVENT_STREAM)
            response.headers.update(STREAM_HEADERS)
            response.headers["X-Session-Id"] = choices[0].generation.session_id
            num_tokens = sum(len(choice.generation.prompt_tokens) for choice in choices)
            response.headers["X-Prompt-Tokens"] = str(num_tokens // num_choices)
            response.call_on_close(stack.pop_all().close)
            return response

    def _begin(
        self, form: Form, body: GenerationBody, prompts: Sequence[Prompt], num_choices: int
    ) -> list[Choice]:
        vocab_size = self._backend.runner.vocab_size
        each_choice = [body.params(choice, vocab_size) for choice in range(num_choices)]
        requests = [
            (partial(self._encode, prompt=prompt), params)
            for prompt in prompts
            for params in each_choice
        ]
        running = self._generations.begin_all(requests, caller_of_request())
        tokenizer = self._backend.tokenizer
        choices = []
        for index, generation in enumerate(running):
            echo = tokenizer.decode(generation.prompt_tokens) if body.wants_echo else ""
            is_scored = body.num_logprobs is not None
            logprobs = Logprobs(tokenizer, form.is_chat) if is_scored else None
            choices.append(Choice(index, generation, echo, logprobs))
        return choices

    def _encode(self, tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        if isinstance(prompt, TokenIds):
            return self._known(prompt.token_ids, "prompt")
        return tokenizer.encode_chat(prompt)

    def _known(self, token_ids: list[int], field: str) -> list[int]:
        vocab_size = self._backend.runner.vocab_size
        if max(token_ids, default=0) >= vocab_size:
            raise InvalidRequest(
                f"Token id {max(token_ids)} is not in this model's vocabulary, 0 to "
                f"{vocab_size - 1}.",
                field,
            )
        return token_ids

    def _check_model(self, model: str | None) -> None:
        if model is not None and model not in self._names:
            raise UnknownModel(model, self._names)

    def _card(self, name: str) -> Json:
        created = self._started_at
        return {"id": name, "object": "model", "created": created, "owned_by": "hearth"}


def _turns(messages: Sequence[ChatMessage] | None) -> list[Message]:
    return [message.as_turn() for message in messages or ()]
