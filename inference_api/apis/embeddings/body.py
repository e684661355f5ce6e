"""The body and the answer of `/v1/embeddings`: OpenAI's shapes, and `pooling` beside them."""

from base64 import b64encode
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, Tag

from inference_api.apis.openai.bodies import (
    BY_FORM_OF_PROMPT,
    MAX_PRIORITY,
    Ids,
    RequestBody,
    Text,
    prompts_of,
)
from inference_api.apis.openai.field_kinds import UNSERVED_OF_EMBEDDINGS
from inference_api.request import GenerationParams, Pooling, SamplingParams
from inference_api.web.fields import MAX_INTEGER, Unserved
from inference_api.web.sampling import Salt
from inference_api.web.wire import WireDict

MAX_INPUTS = 2048  # OpenAI's
MAX_NUMBERS = 2**21  # in an answer as JSON numbers, which take ten times the bytes of base64

EncodingFormat = Literal["float", "base64"]
Inputs = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[Ids, Tag("<ids>")]
    | Annotated[list[Text], Field(max_length=MAX_INPUTS, fail_fast=True), Tag("<texts>")]
    | Annotated[list[Ids], Field(max_length=MAX_INPUTS, fail_fast=True), Tag("<lists of ids>")],
    BY_FORM_OF_PROMPT,
]


class EmbeddingsBody(RequestBody):
    """`dimensions` keeps that many first numbers of a vector; `pooling` makes it from the states of
    all tokens, or of the last one."""

    unserved: ClassVar[Unserved] = UNSERVED_OF_EMBEDDINGS

    model: str | None = None
    input: Inputs
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = Field(None, ge=1, le=MAX_INTEGER)
    pooling: Pooling | None = None
    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    cache_salt: Salt | None = None

    def inputs(self) -> list[str | list[int]]:
        return prompts_of(self.input)

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
