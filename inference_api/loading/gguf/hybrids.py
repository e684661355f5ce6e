"""Converts GGUF metadata of models with recurrent layers to the fields of a config.json."""

from collections.abc import Callable, Mapping
from typing import Any

from inference_api.loading.families.lfm2 import CONV
from inference_api.loading.families.mamba import EXPERTS, MLP
from inference_api.loading.families.qwen3_next import HAS_DECAYS, IS_SPLIT, IS_TILED, LINEAR
from inference_api.loading.families.windows import GLOBAL

Shapes = Mapping[str, tuple[int, ...]]
OwnFields = Callable[[Any, Shapes], dict[str, Any]]
"""Returns the fields that a family has for itself, from a function of metadata keys to values, and
the tensors' shapes by name."""


def by_layer(value: Any, key: str) -> list[Any]:
    """Returns a value for each layer, from one for all layers or a list."""
    values = value(key)
    return values if isinstance(values, list) else [values] * value("block_count")


def _lfm2(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Layers without key-value heads have a short convolution. MLP sizes are exact here."""
    kv_heads = by_layer(value, "attention.head_count_kv")
    return {
        "num_key_value_heads": max(kv_heads),
        "layer_types": [GLOBAL if each else CONV for each in kv_heads],
        "norm_eps": value("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": value("shortconv.l_cache"),
        "conv_bias": any(name.endswith(".shortconv.conv.bias") for name in shapes),
        "num_dense_layers": value("leading_dense_block_count"),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in shapes),
        "routed_scaling_factor": value("expert_weights_scale"),
    }


def _granite_hybrid(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Layers without key-value heads have Mamba-2. With experts, the MLP's size has another key."""
    kv_heads = by_layer(value, "attention.head_count_kv")
    experts = value("expert_count") or 0
    shared = value("expert_shared_feed_forward_length") if experts else value("feed_forward_length")
    return {
        **_mamba(value),
        "num_key_value_heads": max(kv_heads),
        "layer_types": [GLOBAL if each else LINEAR for each in kv_heads],
        "position_embedding_type": "rope" if value("rope.scaling.finetuned") else None,
        "num_local_experts": experts,
        "intermediate_size": value("expert_feed_forward_length") or value("feed_forward_length"),
        "shared_intermediate_size": shared,
        "mamba_expand": value("ssm.inner_size") // value("embedding_length"),
        IS_SPLIT: True,
    }


def _falcon_h1(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Multipliers are already applied to the weights."""
    return {
        **_mamba(value),
        "mamba_d_ssm": value("ssm.inner_size"),
        "mamba_norm_before_gate": False,
        "mamba_rms_norm": any(name.endswith(".ssm_norm.weight") for name in shapes),
    }


def _nemotron_h(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Layers with neither key-value heads nor an MLP have Mamba-2."""
    num_layers = value("block_count") - (value("nextn_predict_layers") or 0)
    kv_heads = by_layer(value, "attention.head_count_kv")[:num_layers]
    ffn_sizes = by_layer(value, "feed_forward_length")[:num_layers]
    kinds = [GLOBAL if heads else LINEAR for heads in kv_heads]
    for layer, size in enumerate(ffn_sizes):
        if size and not kv_heads[layer]:
            kinds[layer] = EXPERTS if f"blk.{layer}.ffn_gate_inp.weight" in shapes else MLP
    return {
        **_mamba(value),
        "layers_block_type": kinds,
        "num_key_value_heads": max(kv_heads),
        "intermediate_size": max(ffn_sizes) or None,
        "partial_rotary_factor": None,
        "moe_shared_expert_intermediate_size": value("expert_shared_feed_forward_length"),
        "moe_latent_size": value("moe_latent_size"),
        "routed_scaling_factor": value("expert_weights_scale"),
        "norm_topk_prob": value("expert_weights_norm"),
        "n_group": value("expert_group_count"),
        "topk_group": value("expert_group_used_count"),
    }


def _mamba(value: Any) -> dict[str, Any]:
    """Files have the rates of decay themselves, not their logarithms."""
    heads = value("ssm.time_step_rank")
    return {
        "mamba_d_conv": value("ssm.conv_kernel"),
        "mamba_d_head": value("ssm.inner_size") // heads,
        "mamba_d_state": value("ssm.state_size"),
        "mamba_n_groups": value("ssm.group_count"),
        "mamba_n_heads": heads,
        HAS_DECAYS: True,
    }


def _delta(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Layers with a fused projection of queries, keys and values have a delta rule. Files have the
    rates of decay, not their logarithms; in Qwen3.5's files the value heads are interleaved."""
    num_layers = value("block_count") - (value("nextn_predict_layers") or 0)
    heads = value("ssm.time_step_rank")
    are_delta = [f"blk.{layer}.ssm_out.weight" in shapes for layer in range(num_layers)]
    return {
        "layer_types": [LINEAR if is_delta else GLOBAL for is_delta in are_delta],
        "linear_conv_kernel_dim": value("ssm.conv_kernel"),
        "linear_key_head_dim": value("ssm.state_size"),
        "linear_num_key_heads": value("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": value("ssm.inner_size") // heads,
        "shared_expert_intermediate_size": value("expert_shared_feed_forward_length"),
        IS_SPLIT: any(name.endswith(".attn_qkv.weight") for name in shapes),
        IS_TILED: True,
        HAS_DECAYS: True,
    }


HYBRIDS: Mapping[str, OwnFields] = {  # keys: architectures
    "falcon-h1": _falcon_h1,
    "granitehybrid": _granite_hybrid,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    "qwen35": _delta,
    "qwen35moe": _delta,
    "qwen3next": lambda value, shapes: _delta(value, shapes) | {IS_TILED: False},
}
