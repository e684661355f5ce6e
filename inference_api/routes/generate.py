"""The native generation routes: text in, a stream of text out.

Read it as the request does: body, prompt, queue, first event, then one chunk per piece.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flask import Blueprint, Response

from inference_api.bodies.native import GenerationBody, json_schema, parse_generation_body
from inference_api.errors import HearthError
from inference_api.generation.streaming import Generations, TextGeneration
from inference_api.routes.caller import caller_of_request, json_body
from inference_api.routes.openapi_document import Error, Operations
from inference_api.settings import Settings
from inference_api.text.prompt_encoder import PromptEncoder

RAW_TEXT = "text/plain; charset=utf-8"
EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Encode = Callable[[PromptEncoder, str], Sequence[int]]

REFUSALS: dict[int, Any] = {400: Error, 404: Error, 503: Error}
OPERATIONS: Operations = {
    "POST /inference": {
        "summary": "Continue a text with the served model; the answer is a stream of bare text.",
        "body": json_schema(),
        "answers": {200: "text/plain", **REFUSALS},
    },
    "POST /inference/<path:model>": {
        "summary": "Continue a text; the answer is a stream of bare text.",
        "body": json_schema(),
        "answers": {200: "text/plain", **REFUSALS},
    },
    "POST /predictions/<path:model>": {
        "summary": "Answer a user's turn; the answer is a stream of bare text.",
        "body": json_schema(),
        "answers": {200: "text/plain", **REFUSALS},
    },
    "POST /chat/<path:model>": {
        "summary": "Answer a user's turn; every event carries the whole answer so far.",
        "body": json_schema(),
        "answers": {200: "text/event-stream", **REFUSALS},
    },
}


def create_blueprint(generations: Generations, settings: Settings) -> Blueprint:
    blueprint = Blueprint("generate", __name__)

    # Not by the rule's `defaults`: with those, Werkzeug redirects who names the default.
    @blueprint.post("/inference")
    @blueprint.post("/inference/<path:model>")
    def infer(model: str = settings.default_model.name) -> Response:
        """The text as given goes to the model; the answer is the bare text."""
        body, generation = begin(model, encode_plain)
        return streamed(generation, _raw_chunks(body, generation, settings), RAW_TEXT)

    @blueprint.post("/predictions/<path:model>")
    def predict(model: str) -> Response:
        """The text is one user turn; the answer is the bare text."""
        body, generation = begin(model, encode_turn)
        return streamed(generation, _raw_chunks(body, generation, settings), RAW_TEXT)

    @blueprint.post("/chat/<path:model>")
    def chat(model: str) -> Response:
        """The text is one user turn; every event carries the whole answer so far."""
        body, generation = begin(model, encode_turn)
        return streamed(generation, _chat_events(body, generation), EVENT_STREAM)

    def begin(model: str, encode: Encode) -> tuple[GenerationBody, TextGeneration]:
        name = settings.name_of(model)
        body = parse_generation_body(json_body(), settings.has_strict_bounds(model))
        return body, generations.begin(
            name, lambda prompts: encode(prompts, body.text), body.params, caller_of_request()
        )

    return blueprint


def encode_plain(prompts: PromptEncoder, text: str) -> Sequence[int]:
    return prompts.encode(text)


def encode_turn(prompts: PromptEncoder, text: str) -> Sequence[int]:
    return prompts.encode_chat([{"role": "user", "content": text}])


def streamed(generation: TextGeneration, chunks: Iterator[bytes], mimetype: str) -> Response:
    """A chunked response that ends its generation when it ends itself, however that comes."""
    response = Response(chunks, content_type=mimetype)
    response.headers.update(STREAM_HEADERS)
    response.headers["X-Session-Id"] = generation.session_id
    # Raw text has no usage; limits by tokens need to know.
    response.headers["X-Prompt-Tokens"] = str(len(generation.prompt_tokens))
    response.call_on_close(generation.close)
    return response


def _raw_chunks(
    body: GenerationBody, generation: TextGeneration, settings: Settings
) -> Iterator[bytes]:
    if body.return_prompt:
        yield body.text.encode()
    for piece in generation.pieces():
        yield piece.encode()
    if settings.stream_end_marker:
        yield settings.stream_end_marker.encode()


def _chat_events(body: GenerationBody, generation: TextGeneration) -> Iterator[bytes]:
    message = body.text if body.return_prompt else ""
    try:
        for piece in generation.pieces():
            message += piece
            yield _event("answer", {"message": message})
    except HearthError as error:
        yield _event("error", error.body())
        raise  # so that the connection breaks instead of ending well
    yield _event("close", {"message": "Connection closed"})


def _event(name: str, content: Mapping[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()
