"""Published measurements: `observations.yaml`, each with its source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import Field, model_validator

from optimizer.catalogue.facts import AnyPrecision, Positive, Size, Source, shipped_facts
from optimizer.inferno_json import Body, read
from optimizer.spec import Name, Text

FILE = Path(__file__).with_name("observations.yaml")
MOST_ROWS = 4096  # rows of one measurement


class Point(Body):
    """One measurement of requests of one shape; `rows` 0: as many as fit into the memory."""

    rows: Annotated[int, Field(ge=0, le=MOST_ROWS)]
    in_tokens: Annotated[int, Field(ge=0, le=10**6, alias="in")]
    out_tokens: Annotated[int, Field(ge=1, le=10**6, alias="out")]
    itl_ms: Positive | None = None
    output_tokens_per_second: Positive | None = None
    latency_ms: Positive | None = None
    ttft_ms: Positive | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        given = (self.itl_ms, self.output_tokens_per_second, self.latency_ms, self.ttft_ms)
        if sum(value is not None for value in given) != 1:
            raise ValueError(
                "give one of itlMs, outputTokensPerSecond, latencyMs and ttftMs, not more or none"
            )
        return self


class Observation(Body):
    """Published measurements of a model on an accelerator, by one engine."""

    model: Name
    accelerator: Name
    cards: Size = 1
    precision: AnyPrecision
    cache_bits: Annotated[int, Field(ge=4, le=32)] = 16
    engine: Name
    measured: Text | None = None
    source: Source
    points: Annotated[list[Point], Field(min_length=1, max_length=500)]


class _Observations(Body):
    observations: list[Observation]


def published() -> Sequence[Observation]:
    """Returns all, of models and accelerators that the catalogue has."""
    facts = shipped_facts()
    found = read(_Observations, yaml.safe_load(FILE.read_text(encoding="utf-8"))).observations
    for seen in found:
        assert seen.model in facts.models, seen.model
        assert seen.accelerator in facts.accelerators, seen.accelerator
    return found
