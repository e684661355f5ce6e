"""OpenAI's routes under `/v1`, for clients of OpenAI and vLLM.

A completion is one or several generations; the answer is made of their texts.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, partial

from flask import Blueprint, Response, g, jsonify

from common.errors import Error
from common.operations import operation
from inference_api.bodies.fields import parse
from inference_api.bundle_file import ROUTED
from inference_api.errors import InvalidRequest
from inference_api.generation.chat import Conversation, answer_reader, plain_reader
from inference_api.generation.streaming import Generations, TextGeneration
from inference_api.openai.answers import ChatCompletion, Completion
from inference_api.openai.choices import AboutChoice, Choice, chunks, whole_answer
from inference_api.openai.logprobs import Logprobs, first_of, prompt_logprobs
from inference_api.openai.model_cards import ExpertModelCard, ModelCard, ModelList, expert_card
from inference_api.openai.requests import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    StreamOptions,
    TokenIds,
)
from inference_api.openai.shapes import CHAT, COMPLETION, Form
from inference_api.request import ScoredToken
from inference_api.routes.caller import caller_of_request, json_body
from inference_api.routes.chosen_model import Chosen, ModelChoice
from inference_api.routes.errors import ROW_REFUSALS
from inference_api.routes.generate import EVENT_STREAM, STREAM_HEADERS, switch_headers
from inference_api.routes.tokenize import known_ids, prompt_is_called
from inference_api.scheduling.decode_backend import DecodeBackend
from inference_api.scheduling.served_model import ServedModel
from inference_api.settings import Settings
from inference_api.text.expert_router import Route
from inference_api.text.prompt_encoder import PromptEncoder
from inference_api.text.tokens import Tokenizer

Prompt = str | TokenIds | Conversation


def create_blueprint(
    generations: Generations, backend: DecodeBackend, settings: Settings, choice: ModelChoice
) -> Blueprint:
    blueprint = Blueprint("openai", __name__)
    views = _Views(generations, backend, settings, choice)
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
    ) -> None:
        self._choice = choice
        self._generations = generations
        self._backend = backend
        self._settings = settings
        self._started_at = int(time.time())

    @operation("The models served; of a bundle's experts also their state.", {200: ModelList})
    def models(self) -> Response:
        routed = (ROUTED,) if self._settings.has_router else ()
        cards = [self._card(name) for name in (*self._settings.served_names, *routed)]
        return jsonify(ModelList(object="list", data=cards))

    @operation("One of the models served.", {200: ModelCard | ExpertModelCard, 404: Error})
    def model(self, model: str) -> Response:
        if model != ROUTED or not self._settings.has_router:
            self._settings.name_of(model)
        return jsonify(self._card(model))

    @operation(
        "Continue prompts.",
        {200: (Completion, "text/event-stream"), **ROW_REFUSALS},
        CompletionBody,
    )
    def completions(self) -> Response:
        body = parse(CompletionBody, json_body())
        return self._answer(COMPLETION, body, body.prompts())

    @operation(
        "Answer a conversation.",
        {200: (ChatCompletion, "text/event-stream"), **ROW_REFUSALS},
        ChatBody,
    )
    def chat_completions(self) -> Response:
        body = parse(ChatBody, json_body())
        return self._answer(CHAT, body, [body.conversation()])

    def _answer(self, form: Form, body: GenerationBody, prompts: Sequence[Prompt]) -> Response:
        chosen = self._choice.of(body.model, _user_texts(prompts))
        if body.stream_options is not None and not body.stream:
            raise InvalidRequest("stream_options needs stream: true.", "stream_options")
        num_choices = body.n or 1
        self._backend.check_admission()
        identity = {"id": form.id_prefix + g.request_id, "created": int(time.time())}
        identity["model"] = chosen.shown
        with ExitStack() as stack:
            choices = self._begin(form, body, prompts, chosen, stack)
            told = chosen.headers | switch_headers(choice.generation for choice in choices)
            if not body.stream:
                response = jsonify(whole_answer(form, identity, choices, num_choices))
                response.headers.update(told)
                return response
            options = body.stream_options or StreamOptions()
            events = chunks(form, identity, choices, num_choices, options)
            response = Response(events, content_type=EVENT_STREAM)
            response.headers.update(STREAM_HEADERS)
            response.headers.update(told)
            response.headers["X-Session-Id"] = choices[0].generation.session_id
            num_tokens = sum(len(choice.generation.prompt_tokens) for choice in choices)
            response.headers["X-Prompt-Tokens"] = str(num_tokens // num_choices)
            response.call_on_close(stack.pop_all().close)
            return response

    def _begin(
        self,
        form: Form,
        body: GenerationBody,
        prompts: Sequence[Prompt],
        chosen: Chosen,
        stack: ExitStack,
    ) -> list[Choice]:
        """`stack` ends what is begun."""
        model = self._backend.served[chosen.name]
        each_choice = [body.params(choice, model) for choice in range(body.n or 1)]
        encodes = [
            cache(partial(_encode, model=model, prompt=prompt, body=body)) for prompt in prompts
        ]
        requests = [(encode, params) for encode in encodes for params in each_choice]
        with prompt_is_called(form.prompt_field):
            running = self._generations.begin_all(model.name, requests, caller_of_request())
        for generation in running:
            stack.callback(generation.close)
        return [
            _choice(index, body, generation, model.tokenizer, chosen.route, scored)
            for index, generation in enumerate(running)
            for scored in [running[index - index % len(each_choice)].scored_prompt]
        ]

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


def _choice(
    index: int,
    body: GenerationBody,
    generation: TextGeneration,
    tokenizer: Tokenizer,
    route: Route | None,
    scored_prompt: Sequence[ScoredToken],
) -> Choice:
    """`scored_prompt` is of the first choice of its prompt."""
    prompt_tokens = generation.prompt_tokens
    echo = tokenizer.decode(prompt_tokens) if body.wants_echo else ""
    scored_echo = len(prompt_tokens) if body.wants_echo else 0
    shown = body.prompt_logprobs
    logprobs = None
    if body.num_logprobs is not None:
        is_chat = isinstance(body, ChatBody)
        logprobs = Logprobs(tokenizer, is_chat, scored_echo, generation.kept_token_ids)
    use = body.tool_use() if isinstance(body, ChatBody) else None
    about = AboutChoice(
        echo,
        first_of(generation.scored_prompt, body.num_logprobs or 0) if scored_echo else (),
        None if shown is None else prompt_logprobs(first_of(scored_prompt, shown), tokenizer),
        route,
        use is not None and use.is_named,
    )
    reader = plain_reader() if use is None else answer_reader(tokenizer, use, prompt_tokens)
    return Choice(index, generation, reader, logprobs, about)


def _user_texts(prompts: Sequence[Prompt]) -> list[str]:
    """Returns what a router reads: the user's messages of a conversation, or the first prompt."""
    prompt = prompts[0]
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, TokenIds):
        return []
    return [turn["content"] for turn in prompt.turns if turn["role"] == "user"]


def _encode(
    prompts: PromptEncoder, model: ServedModel, prompt: Prompt, body: GenerationBody
) -> list[int]:
    if isinstance(prompt, str):
        token_ids = prompts.encode(prompt)
    elif isinstance(prompt, TokenIds):
        token_ids = known_ids(prompt.token_ids, model.vocab_size, "prompt")
    else:
        token_ids = prompts.encode_chat(prompt.turns, prompt.extras)
    body.check_room(len(token_ids), model.max_seq_len)
    return token_ids
