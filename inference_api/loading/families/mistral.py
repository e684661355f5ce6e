"""Reads the config.json of Ministral 3, and of Mistral's models that see too."""

from dataclasses import replace

from inference_api.loading.config import ModelConfig
from inference_api.loading.families.fields import ConfigFields, text_fields
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.windows import same_window

QUERY_GROWTH = "llama_4_scaling_beta"


def read_ministral3(fields: ConfigFields) -> ModelConfig:
    """Mistral, whose queries grow with their position."""
    config = read_llama_like(fields, windows=same_window)
    [rope, *_] = config.ropes
    assert rope is not None
    given = fields.under({**fields.mapping("rope_scaling"), **fields.mapping("rope_parameters")})
    if given.raw.get(QUERY_GROWTH):
        rope = replace(rope, query_growth=given.number(QUERY_GROWTH, 1.0))
    return replace(config, ropes=(rope,) * config.num_layers)


def read_mistral3(fields: ConfigFields) -> ModelConfig:
    """The text model of one that sees too."""
    text = text_fields(fields)
    family = text.raw.get("model_type")
    if family == "ministral3":
        return read_ministral3(text)
    if family != "mistral":
        text.refuse("text_config.model_type", family, "ministral3 or mistral there")
    return read_llama_like(text, windows=same_window)
