"""The sampling fields that all bodies under `/v1` share."""

import secrets
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from inference_api.request import DEFAULTED, SamplingParams
from inference_api.web.fields import ANY_SIZE, MAX_INTEGER, Body, RequestedSpeculation

Salt = Annotated[str, Field(max_length=256)]


def seed_of(seed: int | None) -> int:
    """Returns the seed to draw from: a random one for None and, as in llama.cpp and vLLM, -1."""
    return secrets.randbits(63) if seed is None or seed == -1 else seed % 2**64


class SampledBody(Body):
    """Base class of bodies that generate tokens. A model may have defaults for absent fields."""

    also_called: ClassVar[Mapping[str, str]] = {"repeat_penalty": "repetition_penalty"}

    temperature: Annotated[float, Field(ge=0, le=2), ANY_SIZE] | None = None
    top_p: Annotated[float, Field(ge=0, le=1), ANY_SIZE] | None = None
    top_k: int | None = Field(None, ge=-1, le=MAX_INTEGER)
    min_p: Annotated[float, Field(ge=0, le=1), ANY_SIZE] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10), ANY_SIZE] | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    cache_salt: Salt | None = None
    speculation: RequestedSpeculation = None

    @property
    def unset(self) -> frozenset[str]:
        return frozenset(name for name in DEFAULTED if getattr(self, name) is None)

    def sampling(self, choice: int = 0) -> SamplingParams:
        """Returns the sampling parameters of a choice. Each choice has a seed of its own."""
        values = {name: getattr(self, name) for name in DEFAULTED if name not in self.unset}
        values["top_k"] = max(0, self.top_k or 0)
        return SamplingParams(**values, seed=(seed_of(self.seed) + choice) % 2**64)
