"""`PipelineSettings`: for one model split over several processes; see docs/pipeline.md."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_settings import NoDecode

MIN_RANKS, MAX_RANKS = 2, 256


def _layers(value: object) -> object:
    """Raises ValueError."""
    if not isinstance(value, str) or value == "auto":
        return value
    layers = value.split(",")
    if not (MIN_RANKS <= len(layers) <= MAX_RANKS and all(_is_count(each) for each in layers)):
        raise ValueError(
            f"is neither auto nor {MIN_RANKS} to {MAX_RANKS} numbers of layers, as in 12,10,10"
        )
    return tuple(map(int, layers))


def _is_count(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and 1 <= len(text) <= 4 and int(text) >= 1


class PipelineSettings(BaseModel):
    """Settings of a server whose model is split over several ranks. Immutable."""

    split: Annotated[
        tuple[int, ...] | Literal["auto"] | None, NoDecode, BeforeValidator(_layers)
    ] = None
    split_ranks: int = Field(MIN_RANKS, ge=MIN_RANKS, le=MAX_RANKS)
    split_timeout_s: float = Field(30.0, alias="SPLIT_TIMEOUT", ge=1, le=3600)
