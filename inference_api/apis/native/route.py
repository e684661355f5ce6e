"""The native generation routes: text in, a stream of text out.

Read it as the request does: body, prompt, queue, first event, then one chunk per piece.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from flask import Blueprint, Response, current_app

from common.operations import operation
from inference_api.apis.choosing import ModelChoice
from inference_api.apis.events import EVENT_STREAM, STREAM_HEADERS, switch_headers
from inference_api.apis.native.body import NativeBody, parse_native_body
from inference_api.core.generations import Generations, TextGeneration
from inference_api.errors import HearthError
from inference_api.settings import Settings
from inference_api.text.prompt_encoder import PromptEncoder
from inference_api.web.caller import RULES, caller_of_request, json_body, leave_aside
from inference_api.web.errors import ROW_REFUSALS

RAW_TEXT = "text/plain; charset=utf-8"

Encode = Callable[[PromptEncoder, str], Sequence[int]]


def create_blueprint(
    generations: Generations, settings: Settings, choice: ModelChoice
) -> Blueprint:
    blueprint = Blueprint("generate", __name__)
    starter = _Starter(generations, settings, choice)

    # The rule has no `defaults`: with them, Werkzeug redirects requests that name the default.
    @blueprint.post("/inference")
    @blueprint.post("/inference/<path:model>")
    @operation(
        "Continue a text; the answer is a stream of bare text. Without a name: the served model.",
        {200: "text/plain", **ROW_REFUSALS},
        NativeBody,
    )
    def infer(model: str = settings.default_model.name) -> Response:
        body, generation, headers = starter.begin(model, encode_plain)
        chunks = _raw_chunks(body, generation, settings)
        return streamed(generation, chunks, RAW_TEXT, headers)

    @blueprint.post("/predictions/<path:model>")
    @operation(
        "Answer a user's turn; the answer is a stream of bare text.",
        {200: "text/plain", **ROW_REFUSALS},
        NativeBody,
    )
    def predict(model: str) -> Response:
        body, generation, headers = starter.begin(model, encode_turn)
        chunks = _raw_chunks(body, generation, settings)
        return streamed(generation, chunks, RAW_TEXT, headers)

    @blueprint.post("/chat/<path:model>")
    @operation(
        "Answer a user's turn; every event carries the whole answer so far.",
        {200: "text/event-stream", **ROW_REFUSALS},
        NativeBody,
    )
    def chat(model: str) -> Response:
        body, generation, headers = starter.begin(model, encode_turn)
        return streamed(generation, _chat_events(body, generation), EVENT_STREAM, headers)

    return blueprint


@dataclass(frozen=True, slots=True)
class _Starter:
    """Begins the generations of the routes. Any request thread."""

    generations: Generations
    settings: Settings
    choice: ModelChoice

    def begin(
        self, model: str, encode: Encode
    ) -> tuple[NativeBody, TextGeneration, Mapping[str, str]]:
        """Returns the body, the generation, and headers that name the chosen model."""
        self.choice.check(model)
        has_strict_bounds = self.settings.has_strict_bounds(model)
        body = parse_native_body(json_body(), has_strict_bounds, current_app.config[RULES])
        leave_aside(body.left_aside)
        chosen = self.choice.choose(model, [body.text])
        with self.generations.admitted(chosen.name, caller_of_request()) as admitted:
            prompt = encode(admitted.model.prompt_encoder, body.text)
            generation = self.generations.begin(admitted, prompt, body.params())
        return body, generation, chosen.headers


def encode_plain(prompts: PromptEncoder, text: str) -> Sequence[int]:
    return prompts.encode(text)


def encode_turn(prompts: PromptEncoder, text: str) -> Sequence[int]:
    return prompts.encode_chat([{"role": "user", "content": text}])


def streamed(
    generation: TextGeneration, chunks: Iterator[bytes], mimetype: str, headers: Mapping[str, str]
) -> Response:
    """Returns a chunked response that closes its generation however it ends."""
    with ExitStack() as stack:
        stack.callback(generation.close)
        response = Response(chunks, content_type=mimetype)
        response.headers.update(STREAM_HEADERS)
        response.headers.update(headers)
        response.headers["X-Session-Id"] = generation.session_id
        # Raw text has no place for usage, which the proxy's token limits need.
        response.headers["X-Prompt-Tokens"] = str(len(generation.prompt_tokens))
        response.headers.update(switch_headers([generation]))
        response.call_on_close(stack.pop_all().close)
        return response


def _raw_chunks(
    body: NativeBody, generation: TextGeneration, settings: Settings
) -> Iterator[bytes]:
    if body.return_prompt:
        yield body.text.encode()
    for piece in generation.pieces():
        yield piece.encode()
    if settings.stream_end_marker:
        yield settings.stream_end_marker.encode()


def _chat_events(body: NativeBody, generation: TextGeneration) -> Iterator[bytes]:
    message = body.text if body.return_prompt else ""
    try:
        for piece in generation.pieces():
            message += piece
            yield _event("answer", {"message": message})
    except HearthError as error:
        yield _event("error", error.body())
        raise  # break the connection, so that no client takes the answer for complete
    yield _event("close", {"message": "Connection closed"})


def _event(name: str, content: Mapping[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()
