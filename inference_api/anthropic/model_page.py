"""The models served, as Anthropic's clients read them in `/v1/models`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, NotRequired

from inference_api.anthropic.answers import Answer

VERSION_HEADER = "anthropic-version"  # which all clients of Anthropic send, and no others


class ModelInfo(Answer):
    """`created_at` is when the server started; `max_input_tokens` is the context, once known."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: NotRequired[int]


class ModelPage(Answer):
    data: list[ModelInfo]
    has_more: Literal[False]
    first_id: str
    last_id: str


def model_info(name: str, created_s: int, max_seq_len: int | None) -> ModelInfo:
    info = ModelInfo(
        type="model",
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(created_s, UTC).isoformat().replace("+00:00", "Z"),
        lifecycle="active",
    )
    if max_seq_len is not None:
        info["max_input_tokens"] = max_seq_len
    return info


def model_page(infos: Sequence[ModelInfo]) -> ModelPage:
    """Of one or more models, all that there are."""
    return ModelPage(
        data=[*infos], has_more=False, first_id=infos[0]["id"], last_id=infos[-1]["id"]
    )
