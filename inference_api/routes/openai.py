"""OpenAI's routes under `/v1`: what clients of OpenAI and vLLM already know how to ask.

A completion is one or several generations; the answer is put together here from their texts.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, g, jsonify

from inference_api.decode_backend import DecodeBackend
from inference_api.errors import HearthError, InvalidRequest, UnknownModel
from inference_api.metrics import GenerationRecord
from inference_api.openai_schema import (
    DEFAULT_COMPLETION_TOKENS,
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
from inference_api.routes.caller import caller_of_request, json_body
from inference_api.routes.errors import error_body
from inference_api.routes.generate import EVENT_STREAM, streamed
from inference_api.settings import Settings
from inference_api.streaming import Generations, TextGeneration
from inference_api.tokens import Message, Tokenizer

DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]
Prompt = str | TokenIds | list[Message]


@dataclass(frozen=True, slots=True)
class Form:
    """How one of the two routes shapes its answers."""

    id_prefix: str
    object: str
    chunk_object: str
    is_chat: bool

    def choice(self, index: int, text: str, finish_reason: str | None) -> Json:
        content = {"message": {"role": "assistant", "content": text}} if self.is_chat else {}
        text_field = {} if self.is_chat else {"text": text}
        return {
            "index": index,
            **content,
            **text_field,
            "logprobs": None,
            "finish_reason": finish_reason,
        }

    def delta(self, text: str, is_first: bool) -> Json:
        if not self.is_chat:
            return {"text": text}
        role = {"role": "assistant"} if is_first else {}
        return {"delta": {**role, **({"content": text} if text else {})}}


COMPLETION = Form("cmpl-", "text_completion", "text_completion", is_chat=False)
CHAT = Form("chatcmpl-", "chat.completion", "chat.completion.chunk", is_chat=True)


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
        self._started_at = int(time.time())

    def models(self) -> Response:
        return jsonify({"object": "list", "data": [self._card(name) for name in self._names]})

    def model(self, model: str) -> Response:
        self._check_model(model)
        return jsonify(self._card(model))

    def completions(self) -> Response:
        body = parse(CompletionBody, json_body())
        max_tokens = body.max_tokens or DEFAULT_COMPLETION_TOKENS
        return self._answer(COMPLETION, body, body.prompts(), max_tokens)

    def chat_completions(self) -> Response:
        body = parse(ChatBody, json_body())
        max_tokens = body.max_completion_tokens or body.max_tokens
        return self._answer(CHAT, body, [_turns(body.messages)], max_tokens)

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

    def _answer(
        self, form: Form, body: GenerationBody, prompts: Sequence[Prompt], max_tokens: int | None
    ) -> Response:
        self._check_model(body.model)
        _check_stream(body, len(prompts))
        self._backend.check_admission()
        identity = {"id": form.id_prefix + g.request_id, "created": int(time.time())}
        identity["model"] = body.model
        num_choices = body.n or 1
        with ExitStack() as stack:
            running = []
            for prompt in prompts:
                for choice in range(num_choices):
                    running.append(self._begin(prompt, body, choice, max_tokens))
                    stack.callback(running[-1].close)
            if not body.stream:
                return jsonify(_whole(form, identity, running, num_choices))
            stack.pop_all()  # from here on the response closes it
        chunks = _chunks(form, identity, running[0], body.stream_options or StreamOptions())
        return streamed(running[0], chunks, EVENT_STREAM)

    def _begin(
        self, prompt: Prompt, body: GenerationBody, choice: int, max_tokens: int | None
    ) -> TextGeneration:
        return self._generations.begin(
            lambda tokenizer: self._encode(tokenizer, prompt),
            body.params(choice, self._backend.runner.vocab_size, max_tokens),
            caller_of_request(),
        )

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


def _check_stream(body: GenerationBody, num_prompts: int) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", "stream_options")
    if body.stream and (body.n or 1) * num_prompts > 1:
        raise InvalidRequest(
            "A stream carries one choice; ask for n=1 and one prompt, or without stream.", "n"
        )


def _whole(form: Form, identity: Json, running: Sequence[TextGeneration], num_choices: int) -> Json:
    """The answer in one piece, once every generation has ended. A prompt counts once."""
    choices, records = [], []
    for index, generation in enumerate(running):
        text = "".join(generation.pieces())
        records.append(generation.record())
        choices.append(form.choice(index, text, records[-1].finish_reason))
    prompt_tokens = sum(record.prompt_tokens for record in records[::num_choices])
    counts = usage(records, prompt_tokens)
    return {**identity, "object": form.object, "choices": choices, "usage": counts}


def _chunks(
    form: Form, identity: Json, generation: TextGeneration, options: StreamOptions
) -> Iterator[bytes]:
    """Server-sent events: one per piece, one for the finish, one for usage if asked, `[DONE]`."""
    head = {**identity, "object": form.chunk_object}

    def event(delta: Json, finish_reason: str | None) -> bytes:
        choice = {"index": 0, **delta, "logprobs": None, "finish_reason": finish_reason}
        tail: Json = {}
        if options.continuous_usage_stats:
            tail = {"usage": _usage_of(generation)}
        elif options.include_usage:
            tail = {"usage": None}
        return _event({**head, "choices": [choice], **tail})

    is_first = True
    try:
        for piece in generation.pieces():
            yield event(form.delta(piece, is_first), None)
            is_first = False
    except HearthError as error:
        yield _event(error_body(error))
        raise  # so that the connection breaks instead of ending well
    yield event(form.delta("", is_first), generation.record().finish_reason)
    if options.include_usage:
        yield _event({**head, "choices": [], "usage": _usage_of(generation)})
    yield DONE


def usage(records: Sequence[GenerationRecord], prompt_tokens: int) -> Json:
    """OpenAI's counts; for a single generation also the server's own times, in seconds."""
    completion_tokens = sum(record.completion_tokens for record in records)
    total_tokens = prompt_tokens + completion_tokens
    counts: Json = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": total_tokens,
    }
    if len(records) > 1:
        return counts
    (record,) = records
    return counts | {
        "time_to_first_token": record.ttft_s,
        "total_latency": record.e2e_s,
        "completion_tokens_after_first_per_sec": record.tokens_per_s,
        "completion_tokens_after_first_per_sec_first_ten": record.early_tokens_per_s,
        "total_tokens_per_sec": total_tokens / record.e2e_s if record.e2e_s > 0 else None,
        "batch_size_used": round(record.mean_batch_size),
    }


def _usage_of(generation: TextGeneration) -> Json:
    record = generation.record()
    return usage([record], record.prompt_tokens)


def _event(content: Json) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
