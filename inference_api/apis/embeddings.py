"""`/v1/embeddings`: a vector for each text, made from the served model's hidden states."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from flask import Blueprint, Response
from pydantic import Field

from common.operations import operation
from common.wire import WireDict
from inference_api.apis.answering import Answering, encoded
from inference_api.apis.openai import bodies
from inference_api.apis.openai.field_kinds import UNSERVED_OF_EMBEDDINGS
from inference_api.apis.openai.route import DEPLOYMENT
from inference_api.core.generations import Requests, TextGeneration
from inference_api.core.served_model import ServedModel
from inference_api.errors import InvalidRequest
from inference_api.request import GenerationParams, Pooling, SamplingParams
from inference_api.web.caller import read
from inference_api.web.errors import ROW_REFUSALS
from inference_api.web.fields import MAX_INTEGER, Unserved
from inference_api.web.sampling import Salt

MAX_INPUTS = 2048  # OpenAI's
MAX_NUMBERS = 2**21  # in an answer as JSON numbers, which take ten times the bytes of base64

EncodingFormat = Literal["float", "base64"]
SEVERAL = Field(max_length=MAX_INPUTS, fail_fast=True)
Inputs = Annotated[
    bodies.Text
    | bodies.Ids
    | Annotated[list[bodies.Text], SEVERAL]
    | Annotated[list[bodies.Ids], SEVERAL],
    bodies.BY_FORM_OF_PROMPT,
]


class EmbeddingsBody(bodies.RequestBody):
    """`dimensions` keeps that many first numbers of a vector; `pooling` makes it from the states of
    all tokens, or of the last one."""

    unserved: ClassVar[Unserved] = UNSERVED_OF_EMBEDDINGS

    model: str | None = None
    input: Inputs
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = Field(None, ge=1, le=MAX_INTEGER)
    pooling: Pooling | None = None
    priority: int | None = Field(None, ge=-bodies.MAX_PRIORITY, le=bodies.MAX_PRIORITY)
    cache_salt: Salt | None = None

    def inputs(self) -> list[str | list[int]]:
        return bodies.prompts_of(self.input)

    def params(self) -> GenerationParams:
        """Returns parameters of a generation that ends with its first token, which is not shown."""
        return GenerationParams(
            max_tokens=1,
            pooling=self.pooling or "mean",
            priority=self.priority or 0,
            cache_salt=self.cache_salt or "",
            speculation="off",
            sampling=SamplingParams(temperature=0.0),
        )

    def shown(self, embedding: bytes) -> list[float] | str:
        """Returns a vector in the requested encoding, cut to `dimensions` and renormalised."""
        if self.dimensions is not None:
            vector = np.frombuffer(embedding, "<f4")[: self.dimensions]
            length = np.linalg.norm(vector)
            embedding = (vector / (length or 1)).astype("<f4").tobytes()
        if self.encoding_format == "base64":
            return b64encode(embedding).decode()
        numbers: list[float] = np.frombuffer(embedding, "<f4").tolist()
        return numbers


class Embedding(WireDict):
    """`embedding` in base64 is float32, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(WireDict):
    prompt_tokens: int
    total_tokens: int


class Embeddings(WireDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


def create_blueprint(answering: Answering) -> Blueprint:
    blueprint = Blueprint("embeddings", __name__)

    @blueprint.post("/v1/embeddings")
    @blueprint.post(f"{DEPLOYMENT}/embeddings")
    @operation(
        "Vectors of texts, by the model's hidden states: their mean, or the last token's.",
        {200: Embeddings, **ROW_REFUSALS},
        EmbeddingsBody,
    )
    def embeddings(model: str | None = None) -> Response:
        body = read(EmbeddingsBody, model=model)
        inputs = body.inputs()
        texts = [each for each in inputs[:1] if isinstance(each, str)]
        chosen, served = answering.choice.served(body.model, texts)
        check_dimensions(body.dimensions, served)
        check_numbers(body, len(inputs) * (body.dimensions or served.hidden_size))
        params = body.params()

        def requests(model: ServedModel) -> Requests:
            return [(encoded(each, model, "input"), params) for each in inputs]

        with answering.reply(chosen, requests, "input") as reply:
            return reply.complete(_answer(body, chosen.shown, reply.generations))

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


def _answer(body: EmbeddingsBody, model: str, running: Sequence[TextGeneration]) -> Embeddings:
    data = []
    for index, generation in enumerate(running):
        shown = body.shown(generation.embedding)
        data.append(Embedding(object="embedding", index=index, embedding=shown))
    num_tokens = sum(len(each.prompt_tokens) for each in running)
    usage = EmbeddingsUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    return Embeddings(object="list", data=data, model=model, usage=usage)
