"""`/v1/models`, in OpenAI's form and in Anthropic's."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired

from flask import Blueprint, Response, jsonify, request

from common.errors import VERSION_HEADER, Error, MessagesError
from common.operations import operation
from common.wire import WireDict
from inference_api.bundle.cards import ExpertCard, expert_card
from inference_api.bundle.residents import bundle_of
from inference_api.core.decode_backend import DecodeBackend
from inference_api.settings.bundle_file import ROUTED

BY_VERSION = {VERSION_HEADER: {"type": "string", "description": "Asks for Anthropic's form."}}


class ModelCard(WireDict):
    """Describes a model. Once it is known, `max_model_len` is its context in tokens, and the
    sampling fields are the model's own defaults, if it has any. `auto` has neither."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: NotRequired[int]
    default_sampling_params: NotRequired[dict[str, float]]


class ExpertModelCard(ModelCard, ExpertCard):
    """Describes an expert of a bundle, under its name or an alias."""


class ModelList(WireDict):
    object: Literal["list"]
    data: list[ModelCard | ExpertModelCard]


class ModelInfo(WireDict):
    """Describes a model in Anthropic's format. `created_at` is when the server started, and
    `max_input_tokens` the context, once known."""

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


def create_blueprint(backend: DecodeBackend) -> Blueprint:
    blueprint, settings = Blueprint("models", __name__), backend.settings
    started_at = int(time.time())

    @blueprint.get("/v1/models")
    @operation(
        "The models served; of a bundle's experts also their state.",
        {200: ModelList | ModelPage},
        headers=BY_VERSION,
    )
    def models() -> Response:
        routed = (ROUTED,) if settings.has_router else ()
        cards = [card_of(name) for name in (*settings.served_names, *routed)]
        return _by_version(ModelList(object="list", data=cards), _page_of(cards))

    @blueprint.get("/v1/models/<path:model>")
    @operation(
        "One of the models served.",
        {200: ModelCard | ExpertModelCard | ModelInfo, 404: Error | MessagesError},
        headers=BY_VERSION,
    )
    def model(model: str) -> Response:
        if model != ROUTED or not settings.has_router:
            settings.name_of(model)
        card = card_of(model)
        return _by_version(card, _info_of(card))

    def card_of(name: str) -> ModelCard | ExpertModelCard:
        card = ModelCard(id=name, object="model", created=started_at, owned_by="hearth")
        if name != ROUTED and (served := backend.served):
            model = served[settings.name_of(name)]
            card["max_model_len"] = model.max_seq_len
            if model.sampling_defaults:
                card["default_sampling_params"] = dict(model.sampling_defaults)
        bundle, residents = settings.bundle, bundle_of(backend)
        if bundle is None or residents is None or name == ROUTED:
            return card
        member = bundle.member(settings.name_of(name))
        state = residents.snapshot.members[member.name]
        return {**card, **expert_card(backend, member, state)}

    return blueprint


def _by_version(openais: object, anthropics: object) -> Response:
    response = jsonify(anthropics if VERSION_HEADER in request.headers else openais)
    response.vary.add(VERSION_HEADER)
    return response


def _info_of(card: Mapping[str, Any]) -> ModelInfo:
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


def _page_of(cards: Sequence[Mapping[str, Any]]) -> ModelPage:
    data = [_info_of(card) for card in cards]
    return ModelPage(data=data, has_more=False, first_id=data[0]["id"], last_id=data[-1]["id"])
