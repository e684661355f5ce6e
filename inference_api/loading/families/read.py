"""Reads a Hugging Face config.json. Only this package distinguishes between families.

The rest of the engine reads properties of a `ModelConfig` ("is the MLP gated?"), never its family.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inference_api.errors import StartupError
from inference_api.loading.config import ModelConfig, SwiGluConfig
from inference_api.loading.families.deepseek import READERS as OF_DEEPSEEK
from inference_api.loading.families.deepseek import read_mistral4
from inference_api.loading.families.fields import ConfigFields, Readers, text_fields
from inference_api.loading.families.gemma import READERS as OF_GEMMA
from inference_api.loading.families.hunyuan import READERS as OF_HUNYUAN
from inference_api.loading.families.lfm2 import READERS as OF_LFM2
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mamba import READERS as OF_MAMBA
from inference_api.loading.families.mixtures import (
    read_ernie_mixture,
    read_mixtral,
    read_qwen3_mixture,
)
from inference_api.loading.families.olmo_like import READERS as OF_OLMO_LIKE
from inference_api.loading.families.qwen3_next import READERS as OF_QWEN3_NEXT
from inference_api.loading.families.ropes import PHI_KINDS
from inference_api.loading.families.windows import (
    GLOBAL,
    LOCAL,
    alternating_windows,
    same_window,
    switched_window,
    windows_by_layer,
)
from inference_api.loading.quantised.formats import read_quantisation


def read_config(raw: Mapping[str, Any], readers: Readers | None = None) -> ModelConfig:
    """Read the contents of a config.json. `readers` are keyed by `model_type`, by default READERS.

    Raises StartupError that names every value which cannot be served.
    """
    family = raw.get("model_type")
    readers = READERS if readers is None else readers
    reader = readers.get(family) if isinstance(family, str) else None
    if reader is None:
        raise StartupError(
            f"model_type={reprlib.repr(family)} in config.json is not supported; choose a "
            f"model of one of these: {', '.join(sorted(readers))}."
        )
    fields = ConfigFields(raw)
    quantisation = read_quantisation(fields)
    config = replace(reader(fields.with_defaults()), quantisation=quantisation, family=str(family))
    if fields.faults:
        raise StartupError(list(dict.fromkeys(fields.faults)))
    _check_shape(config)
    return config


def _check_shape(config: ModelConfig) -> None:
    faults = [
        f"config.json has {config.num_heads} heads of {shape.head_dim} over {shape.num_kv_heads} "
        "key-value heads; heads must divide evenly and be even in size: get the model again."
        for shape in dict.fromkeys(config.layer_shapes)
        if config.num_heads % shape.num_kv_heads or shape.head_dim % 2
    ]
    if faults:
        raise StartupError(faults)


def _read_mistral3(fields: ConfigFields) -> ModelConfig:
    """Reads the text model of a multimodal model."""
    text = text_fields(fields, "mistral")
    family = text.raw.get("model_type")
    reader = _MISTRAL_TEXTS.get(family) if isinstance(family, str) else None
    if reader is None:
        text.refuse("text_config.model_type", family, f"{' or '.join(_MISTRAL_TEXTS)} there")
    return (reader or _read_mistral)(text)


# Ministral 3's queries grow with their position, as its rope fields say.
_read_mistral = partial(read_llama_like, windows=same_window)
_MISTRAL_TEXTS: Readers = {
    "ministral3": _read_mistral,
    "mistral": _read_mistral,
    "mistral4": read_mistral4,
}


def _read_ernie(fields: ConfigFields) -> ModelConfig:
    """Reads Llama with rotary pairs side by side. Either all projections have biases, or none."""
    has_bias = fields.flag("use_bias")
    fields = fields.replace(attention_bias=has_bias, mlp_bias=has_bias)
    return read_llama_like(fields, tensor_names="ernie4_5")


def _read_ernie_moe(fields: ConfigFields) -> ModelConfig:
    fields.allow_only("use_bias", False)
    return read_llama_like(fields, tensor_names="ernie4_5", mixture=read_ernie_mixture)


def _read_falcon(fields: ConfigFields) -> ModelConfig:
    """Reads Falcon: 7B (one key-value head), 40B and 180B (grouped), old sequential layers."""
    fields.allow_only("alibi", False)
    is_new, has_bias = fields.flag("new_decoder_architecture"), fields.flag("bias")
    is_parallel = is_new or fields.flag("parallel_attn", True)
    num_heads = fields.count("num_attention_heads")
    num_kv_heads = fields.count("num_kv_heads", num_heads)
    if not is_new:
        num_kv_heads = 1 if fields.flag("multi_query", True) else num_heads
    llama_fields = fields.replace(
        attention_bias=has_bias,
        mlp_bias=has_bias,
        hidden_act=fields.activation("activation", "gelu"),
        intermediate_size=fields.count("ffn_hidden_size", 4 * fields.count("hidden_size")),
        num_key_value_heads=num_kv_heads,
        rms_norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
    )
    return replace(
        read_llama_like(llama_fields, tensor_names="falcon"),
        norm="layer",
        is_mlp_gated=False,
        is_parallel=is_parallel,
        has_mlp_norm=not is_parallel
        or (is_new and fields.count("num_ln_in_parallel_attn", 2) == 2),
    )


def _read_smollm3(fields: ConfigFields) -> ModelConfig:
    """Reads SmolLM3: every few layers have no rope, and by default only these have the window."""
    num_layers = fields.count("num_hidden_layers")
    are_turned = _are_turned(fields, num_layers)
    fields = fields.or_else({"layer_types": [GLOBAL if turned else LOCAL for turned in are_turned]})
    config = read_llama_like(fields, windows=windows_by_layer)
    ropes = zip(config.ropes, are_turned, strict=True)
    return replace(config, ropes=tuple(rope if turned else None for rope, turned in ropes))


def _are_turned(fields: ConfigFields, num_layers: int) -> Sequence[bool]:
    """Returns whether each layer has rope."""
    interval = fields.count("no_rope_layer_interval", 4)
    usual = [(layer + 1) % interval != 0 for layer in range(num_layers)]
    named = fields.raw.get("no_rope_layers")
    if named is None:
        return usual
    if (
        not isinstance(named, list)
        or len(named) < num_layers
        or any(n not in (0, 1) for n in named)
    ):
        fields.refuse("no_rope_layers", named, f"0 or 1 for each of its {num_layers} layers")
        return usual
    return [bool(turned) for turned in named[:num_layers]]


def _read_gpt_oss(fields: ConfigFields) -> ModelConfig:
    """Reads gpt-oss: experts with clamped gates, biases everywhere, attention sinks, and a window
    in every other layer."""
    config = read_llama_like(
        fields,
        windows=alternating_windows,
        tensor_names="gpt_oss",
        mixture=lambda *given: replace(read_mixtral(*given), has_biases=True),
    )
    fields.allow_only("hidden_act", "silu", "swish")  # gates are made of it
    limit, alpha = fields.number("swiglu_limit", 7.0), fields.number("swiglu_alpha", 1.702)
    return replace(config, has_sinks=True, swiglu=SwiGluConfig(limit, alpha))


def _read_glm4(fields: ConfigFields) -> ModelConfig:
    """Reads GLM 4: norms before and after attention and MLP, and rope on part of each head."""
    config = read_llama_like(fields, tensor_names="glm4", usual_rotary_share=0.5)
    return replace(config, has_out_bias=False, has_output_norms=True)


def _read_seed_oss(fields: ConfigFields) -> ModelConfig:
    """Reads Seed-OSS: Llama with biases on queries, keys and values only."""
    return replace(read_llama_like(fields), has_out_bias=fields.flag("attention_out_bias"))


READERS: Readers = {
    **OF_DEEPSEEK,
    "ernie4_5": _read_ernie,
    "ernie4_5_moe": _read_ernie_moe,
    "falcon": _read_falcon,
    **OF_GEMMA,
    "glm4": _read_glm4,
    "gpt_oss": _read_gpt_oss,
    "granite": read_llama_like,
    **OF_HUNYUAN,
    **OF_LFM2,
    "llama": read_llama_like,
    **OF_MAMBA,
    **_MISTRAL_TEXTS,
    "mistral3": _read_mistral3,
    "mixtral": partial(
        read_llama_like, windows=same_window, tensor_names="mixtral", mixture=read_mixtral
    ),
    **OF_OLMO_LIKE,
    "phi3": partial(
        read_llama_like,
        windows=same_window,
        tensor_names="phi3",
        rope_kinds=PHI_KINDS,
        usual_rotary_share=1.0,
    ),
    "qwen2": partial(read_llama_like, has_qkv_bias=True, windows=windows_by_layer),
    "qwen3": partial(read_llama_like, has_qk_norm=True, windows=windows_by_layer),
    "qwen3_moe": partial(
        read_llama_like, has_qk_norm=True, windows=switched_window, mixture=read_qwen3_mixture
    ),
    "seed_oss": _read_seed_oss,
    "smollm3": _read_smollm3,
    **OF_QWEN3_NEXT,
}
