"""Reads the config.json of Mistral, Ministral 3, and Mistral's multimodal models."""

from collections.abc import Callable, Mapping
from functools import partial

from inference_api.loading.config import ModelConfig
from inference_api.loading.families.deepseek import read_mistral4
from inference_api.loading.families.fields import ConfigFields, text_fields
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.windows import same_window


def _read_mistral3(fields: ConfigFields) -> ModelConfig:
    """The text model of a multimodal one."""
    text = text_fields(fields)
    family = text.raw.get("model_type")
    reader = _OF_TEXT.get(family) if isinstance(family, str) else None
    if reader is None:
        text.refuse("text_config.model_type", family, f"{' or '.join(_OF_TEXT)} there")
    return (reader or _read_mistral)(text)


# Queries of Ministral 3 grow with their position, as its rope fields say.
_read_mistral = partial(read_llama_like, windows=same_window)
_OF_TEXT: Mapping[str, Callable[[ConfigFields], ModelConfig]] = {
    "ministral3": _read_mistral,
    "mistral": _read_mistral,
    "mistral4": read_mistral4,
}
READERS: Mapping[str, Callable[[ConfigFields], ModelConfig]] = {  # keys: `model_type`
    **_OF_TEXT,
    "mistral3": _read_mistral3,
}
