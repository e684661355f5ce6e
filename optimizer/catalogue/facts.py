"""The facts that ship with Hearth: models and accelerators.

Each has a source. They are read from `data/*.yaml` and checked like request bodies. Immutable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, TypeVar

import yaml
from pydantic import Field

from optimizer.errors import Fault, InvalidRequest
from optimizer.inferno_json import Body, read
from optimizer.spec import Count, Name, Text

NEAREST = 3  # similar names suggested for an unknown one


class Precision(StrEnum):
    """Precision of weights. int4 has a scale for each 128; mxfp4 is gpt-oss's, for experts."""

    BF16 = "bf16"
    FP8 = "fp8"
    INT4 = "int4"
    FP4 = "fp4"
    MXFP4 = "mxfp4"


AnyPrecision = Annotated[Precision, Field(strict=False)]
Positive = Annotated[float, Field(gt=0, le=1e15)]
Size = Annotated[int, Field(ge=1, le=10**7)]
Source = Annotated[str, Field(pattern="^https://", max_length=500)]
Aliases = Annotated[list[Name], Field(max_length=50)]


class Experts(Body):
    """`parameters` of all experts together; `count` of them in a layer, `active` for a token."""

    parameters: Positive
    count: Size
    active: Size


class ModelFacts(Body):
    """The sizes that decide a model's memory and work. `twin_of` is a model of the same shape."""

    name: Name
    aliases: Aliases = Field(default_factory=list)
    parameters: Positive
    vocabulary_parameters: Positive  # parameters of one matrix
    tied: bool = False  # whether input and output matrix are the same
    layers: Size
    width: Size
    kv_heads: Size
    head_size: Size
    window_layers: Count = 0
    window_tokens: Count = 0
    window_kv_heads: Size | None = None  # None: as in other layers
    window_head_size: Size | None = None
    state_layers: Count = 0  # recurrent layers, with a state of fixed size for each row
    state_bytes: Annotated[int, Field(ge=0, le=10**12)] = 0  # size of this state in one layer
    context: Size
    experts: Experts | None = None
    published: AnyPrecision
    twin_of: Text | None = None
    source: Source

    @property
    def shape(self) -> str:
        """The name under which models of one shape share their measurements."""
        return self.twin_of or self.name


class Price(Body):
    """Price of one card, rented on demand, as published on a day."""

    usd_per_hour: Annotated[float, Field(ge=0, le=1e5)]
    of: Text
    date: Text
    source: Text


class AcceleratorFacts(Body):
    """One card, as its maker specifies it. `tflops` are dense, by precision; `link_gbs` is the
    bandwidth to its neighbours."""

    name: Name
    title: Name
    aliases: Aliases = Field(default_factory=list)
    memory_gb: Positive = Field(alias="memoryGB")
    memory_gbs: Positive = Field(alias="memoryGBs")
    tflops: Annotated[dict[str, Positive], Field(min_length=1, max_length=8)]
    link_gbs: Positive = Field(alias="linkGBs")
    watts: Positive
    source: Source
    price: Price | None = None


Entry = TypeVar("Entry", ModelFacts, AcceleratorFacts)


@dataclass(frozen=True, slots=True)
class Facts:
    """All entries by their names."""

    models: Mapping[str, ModelFacts]
    accelerators: Mapping[str, AcceleratorFacts]

    def model(self, name: str, path: str = "model") -> ModelFacts:
        """Returns the model with this name or alias; `path` is its place in the body, for messages.
        Raises InvalidRequest with similar names."""
        return _entry(path, name, self.models)

    def accelerator(self, name: str, path: str) -> AcceleratorFacts:
        """Returns the accelerator with this name or alias. Raises InvalidRequest as `model`
        does."""
        return _entry(path, name, self.accelerators)


def _entry(path: str, name: str, entries: Mapping[str, Entry]) -> Entry:
    names = {entry.name.lower(): entry for entry in entries.values()}
    names |= {alias.lower(): entry for entry in entries.values() for alias in entry.aliases}
    wanted_name = name.strip().lower()
    if wanted_name in names:
        return names[wanted_name]
    near = get_close_matches(wanted_name[:200], names, n=2 * NEAREST, cutoff=0.3)
    offered = list(dict.fromkeys(names[each].name for each in near))[:NEAREST] or sorted(entries)
    raise InvalidRequest(
        [Fault(path, f"{name[:200]!r} is not in the catalogue; nearest: {', '.join(offered)}")]
    )


@lru_cache(maxsize=1)
def shipped_facts() -> Facts:
    """Returns the facts that ship with Hearth. Read once per process."""
    return Facts(_read("models", ModelFacts), _read("accelerators", AcceleratorFacts))


def _read(name: str, kind: type[Entry]) -> dict[str, Entry]:
    text = (files(__package__) / "data" / f"{name}.yaml").read_text(encoding="utf-8")
    entries = (read(kind, entry) for entry in yaml.safe_load(text)[name])
    return {entry.name: entry for entry in entries}
