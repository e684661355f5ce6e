"""`/v1/embeddings`: a vector for each text, made from the served model's hidden states."""

from contextlib import ExitStack

from flask import Blueprint, Response, jsonify

from common.operations import operation
from inference_api.apis.answering import begin, encoded
from inference_api.apis.choosing import ModelChoice
from inference_api.apis.embeddings.body import (
    MAX_NUMBERS,
    Embedding,
    Embeddings,
    EmbeddingsBody,
    EmbeddingsUsage,
)
from inference_api.apis.events import switch_headers
from inference_api.core.generations import Generations, TextGeneration
from inference_api.core.requests import Requests
from inference_api.core.served_model import ServedModel
from inference_api.errors import InvalidRequest
from inference_api.web.caller import read
from inference_api.web.errors import ROW_REFUSALS


def create_blueprint(generations: Generations, choice: ModelChoice) -> Blueprint:
    blueprint = Blueprint("embeddings", __name__)

    @blueprint.post("/v1/embeddings")
    @operation(
        "Vectors of texts, by the model's hidden states: their mean, or the last token's.",
        {200: Embeddings, **ROW_REFUSALS},
        EmbeddingsBody,
    )
    def embeddings() -> Response:
        body = read(EmbeddingsBody)
        inputs = body.inputs()
        texts = [each for each in inputs[:1] if isinstance(each, str)]
        chosen, model = choice.served(body.model, texts)
        check_dimensions(body.dimensions, model)
        check_numbers(body, len(inputs) * (body.dimensions or model.hidden_size))
        params = body.params()

        def requests(model: ServedModel) -> Requests:
            return [(encoded(each, model, "input"), params) for each in inputs]

        with ExitStack() as stack:
            running = begin(generations, stack, model.name, requests, "input")
            response = jsonify(_answer(body, chosen.shown, running))
            response.headers.update(chosen.headers | switch_headers(running))
            return response

    return blueprint


def check_dimensions(dimensions: int | None, model: ServedModel) -> None:
    """Raises InvalidRequest if the model has fewer dimensions, or no hidden states."""
    if not model.hidden_size:
        raise InvalidRequest(
            f"model: {model.name} has no hidden states, as it is a mock; ask a server of a model.",
            "model",
        )
    if dimensions is not None and dimensions > model.hidden_size:
        raise InvalidRequest(
            f"dimensions: is {dimensions}, above the {model.hidden_size} that {model.name} has; "
            "lower it or leave it out.",
            "dimensions",
        )


def check_numbers(body: EmbeddingsBody, num_numbers: int) -> None:
    """Raises InvalidRequest for an answer with more than MAX_NUMBERS JSON numbers."""
    if body.encoding_format != "base64" and num_numbers > MAX_NUMBERS:
        raise InvalidRequest(
            f"input: its vectors are {num_numbers} numbers, above {MAX_NUMBERS}; give fewer texts, "
            "fewer dimensions, or encoding_format: base64.",
            "input",
        )


def _answer(body: EmbeddingsBody, model: str, running: list[TextGeneration]) -> Embeddings:
    data = []
    for index, generation in enumerate(running):
        assert generation.embedding is not None, "its first event has come"
        shown = body.shown(generation.embedding)
        data.append(Embedding(object="embedding", index=index, embedding=shown))
    num_tokens = sum(len(each.prompt_tokens) for each in running)
    usage = EmbeddingsUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    return Embeddings(object="list", data=data, model=model, usage=usage)
