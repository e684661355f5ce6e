"""The list of models of `/v1/models` in Anthropic's format."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired

from inference_api.web.wire import WireDict


class ModelInfo(WireDict):
    """`created_at` is when the server started; `max_input_tokens` is the context, once known."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: NotRequired[int]


class ModelPage(WireDict):
    data: list[ModelInfo]
    has_more: Literal[False]
    first_id: str
    last_id: str


def info_of(card: Mapping[str, Any]) -> ModelInfo:
    """Returns a model's description, from its card in OpenAI's format."""
    name, created_at = card["id"], datetime.fromtimestamp(card["created"], UTC)
    info = ModelInfo(
        type="model",
        id=name,
        display_name=name,
        created_at=f"{created_at:%Y-%m-%dT%H:%M:%SZ}",
        lifecycle="active",
    )
    if "max_model_len" in card:
        info["max_input_tokens"] = card["max_model_len"]
    return info


def page_of(cards: Sequence[Mapping[str, Any]]) -> ModelPage:
    data = [info_of(card) for card in cards]
    return ModelPage(data=data, has_more=False, first_id=data[0]["id"], last_id=data[-1]["id"])
