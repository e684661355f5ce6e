"""Reads a Hugging Face config.json: all differences between the supported families end here.

The rest of the engine asks a `ModelConfig` only for properties ("is the MLP gated?"), never for a
family. Loads no torch.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from inference_api.engine.loading.config import DEFAULT_MAX_SEQ_LEN, ModelConfig
from inference_api.engine.loading.config_fields import MAX_LAYERS, ConfigFields
from inference_api.errors import StartupError


def read_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Understand the contents of a config.json.

    Both spellings of rope are read: `rope_parameters` (transformers 5) and `rope_theta` with
    `rope_scaling` (before). Raises StartupError naming every value that cannot be served.
    """
    family = raw.get("model_type")
    reader = _READERS.get(family) if isinstance(family, str) else None
    if reader is None:
        raise StartupError(
            [
                f"model_type={reprlib.repr(family)} in config.json is not supported; choose a "
                f"model of one of these: {', '.join(sorted(_READERS))}."
            ]
        )
    fields = ConfigFields(raw)
    if raw.get("quantization_config"):
        fields.faults.append(
            "config.json has a quantization_config and quantised checkpoints are not supported; "
            "choose the original float32, float16 or bfloat16 checkpoint."
        )
    config = replace(reader(fields), family=str(family))
    if fields.faults:
        raise StartupError(fields.faults)
    _check_shape(config)
    return config


def _check_shape(config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise StartupError(
            [
                f"config.json has {config.num_heads} heads of {config.head_dim} over "
                f"{config.num_kv_heads} key-value heads; heads must divide evenly and be even "
                "in size: get the model again."
            ]
        )


_ReadWindows = Callable[[ConfigFields, int], tuple[int | None, ...]]


def _no_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    return (None,) * num_layers


def _same_window(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Mistral: one window for all layers; `null` turns it off."""
    if fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    return (fields.count("sliding_window"),) * num_layers


def _windows_by_layer(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Qwen: behind a switch, for the layers that `layer_types` or `max_window_layers` name."""
    if not fields.flag("use_sliding_window") or fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    window = fields.count("sliding_window")
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        first = fields.count("max_window_layers", 28)
        kinds = ["sliding_attention" if i >= first else "" for i in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        fields.refuse("layer_types", kinds, f"one layer type for each of its {num_layers} layers")
        return (None,) * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _read_llama_like(
    fields: ConfigFields,
    has_qkv_bias: bool | None = None,
    has_qk_norm: bool = False,
    windows: _ReadWindows = _no_windows,
) -> ModelConfig:
    """Llama and the families that differ from it in biases, query norms, windows and multipliers.

    `has_qkv_bias` None means that the config's `attention_bias` decides.
    """
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
    max_positions = fields.count("max_position_embeddings", DEFAULT_MAX_SEQ_LEN)
    vocab_size = fields.count("vocab_size")
    head_dim = fields.count("head_dim", max(1, hidden_size // num_heads))
    attention_bias = fields.flag("attention_bias")
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        ffn_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_positions=max_positions,
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.activation("hidden_act", "silu"),
        is_mlp_gated=True,
        has_qkv_bias=attention_bias if has_qkv_bias is None else has_qkv_bias,
        has_out_bias=attention_bias,
        has_mlp_bias=fields.flag("mlp_bias"),
        has_qk_norm=has_qk_norm,
        is_parallel=False,
        has_mlp_norm=True,
        is_head_tied=fields.flag("tie_word_embeddings"),
        windows=windows(fields, num_layers),
        attention_scale=fields.number("attention_multiplier", head_dim**-0.5),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        logits_divisor=fields.number("logits_scaling", 1.0),
        rope=fields.rope(max_positions),
        tensor_names="llama",
        eos_token_ids=fields.eos_token_ids(vocab_size),
    )


def _read_falcon(fields: ConfigFields) -> ModelConfig:
    """Falcon: 7B (one key-value head), 40B and 180B (grouped), and the old sequential layers."""
    if fields.flag("alibi"):
        fields.refuse("alibi", True, "rotary positions (alibi=false)")
    is_new = fields.flag("new_decoder_architecture")
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
    max_positions = fields.count("max_position_embeddings", DEFAULT_MAX_SEQ_LEN)
    vocab_size = fields.count("vocab_size")
    num_kv_heads = fields.count("num_kv_heads", num_heads)
    if not is_new:
        num_kv_heads = 1 if fields.flag("multi_query", True) else num_heads
    head_dim = max(1, hidden_size // num_heads)
    is_parallel = is_new or fields.flag("parallel_attn", True)
    has_bias = fields.flag("bias")
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        ffn_size=fields.count("ffn_hidden_size", 4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=fields.activation("activation", "gelu"),
        is_mlp_gated=False,
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
        has_mlp_bias=has_bias,
        has_qk_norm=False,
        is_parallel=is_parallel,
        has_mlp_norm=not is_parallel
        or (is_new and fields.count("num_ln_in_parallel_attn", 2) == 2),
        is_head_tied=fields.flag("tie_word_embeddings", True),
        windows=(None,) * num_layers,
        attention_scale=head_dim**-0.5,
        embedding_multiplier=1.0,
        residual_multiplier=1.0,
        logits_divisor=1.0,
        rope=fields.rope(max_positions),
        tensor_names="falcon",
        eos_token_ids=fields.eos_token_ids(vocab_size),
    )


_READERS: dict[str, Callable[[ConfigFields], ModelConfig]] = {
    "falcon": _read_falcon,
    "granite": _read_llama_like,
    "llama": _read_llama_like,
    "mistral": partial(_read_llama_like, windows=_same_window),
    "qwen2": partial(_read_llama_like, has_qkv_bias=True, windows=_windows_by_layer),
    "qwen3": partial(_read_llama_like, has_qk_norm=True, windows=_windows_by_layer),
}
