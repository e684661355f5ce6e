"""The native generation routes: text in, a stream of text out.

Read it as the request does: body, prompt, queue, first event, then one chunk per piece.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from flask import Blueprint, Response

from common.operations import operation
from inference_api.apis.answering import Answering
from inference_api.apis.events import EVENT_STREAM
from inference_api.apis.native.body import NativeBody, StrictNativeBody, parse_native_body
from inference_api.core.generations import Prompt, Requests, TextGeneration
from inference_api.core.served_model import ServedModel
from inference_api.errors import HearthError
from inference_api.web.caller import read
from inference_api.web.errors import ROW_REFUSALS

RAW_TEXT = "text/plain; charset=utf-8"

Encode = Callable[[ServedModel, str], Prompt]
Write = Callable[[NativeBody, TextGeneration], Iterator[bytes]]


def create_blueprint(answering: Answering) -> Blueprint:
    blueprint, settings = Blueprint("generate", __name__), answering.generations.backend.settings
    raw_text = partial(_raw_text, settings.stream_end_marker)

    # The rule has no `defaults`: with them, Werkzeug redirects requests that name the default.
    @blueprint.post("/inference")
    @blueprint.post("/inference/<path:model>")
    @operation(
        "Continue a text; the answer is a stream of bare text. Without a name: the served model.",
        {200: "text/plain", **ROW_REFUSALS},
        NativeBody,
    )
    def infer(model: str = settings.default_model.name) -> Response:
        return _answer(answering, model, _plain, raw_text, RAW_TEXT)

    @blueprint.post("/predictions/<path:model>")
    @operation(
        "Answer a user's turn; the answer is a stream of bare text.",
        {200: "text/plain", **ROW_REFUSALS},
        NativeBody,
    )
    def predict(model: str) -> Response:
        return _answer(answering, model, _turn, raw_text, RAW_TEXT)

    @blueprint.post("/chat/<path:model>")
    @operation(
        "Answer a user's turn; every event carries the whole answer so far.",
        {200: "text/event-stream", **ROW_REFUSALS},
        NativeBody,
    )
    def chat(model: str) -> Response:
        return _answer(answering, model, _turn, _chat_events, EVENT_STREAM)

    return blueprint


def _answer(
    answering: Answering, model: str, encode: Encode, write: Write, content_type: str
) -> Response:
    answering.choice.check(model)
    is_strict = answering.generations.backend.settings.has_strict_bounds(model)
    body = read(StrictNativeBody if is_strict else NativeBody, parse_native_body)
    chosen, params = answering.choice.choose(model, [body.text]), body.params()

    def requests(served: ServedModel) -> Requests:
        return [(encode(served, body.text), params)]

    with answering.reply(chosen, requests, "text") as reply:
        [generation] = reply.generations
        num_tokens, chunks = len(generation.prompt_tokens), write(body, generation)
        return reply.streamed(chunks, content_type, num_tokens)


def _plain(model: ServedModel, text: str) -> Prompt:
    return model.prompt_encoder.encode(text)


def _turn(model: ServedModel, text: str) -> Prompt:
    return model.prompt_encoder.encode_chat([{"role": "user", "content": text}])


def _raw_text(end_marker: str, body: NativeBody, generation: TextGeneration) -> Iterator[bytes]:
    if body.return_prompt:
        yield body.text.encode()
    for piece in generation.pieces():
        yield piece.encode()
    if end_marker:
        yield end_marker.encode()


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
