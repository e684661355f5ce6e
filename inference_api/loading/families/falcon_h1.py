"""Reads the config.json of Falcon-H1: in every layer, attention and Mamba-2 read the same input."""

from collections.abc import Mapping
from dataclasses import replace

from inference_api.loading.config import ModelConfig, RowFactor
from inference_api.loading.families.fields import ConfigFields
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mamba import read_mamba
from inference_api.loading.families.recurrence import RecurrentConfig


def read_falcon_h1(fields: ConfigFields) -> ModelConfig:
    """Multipliers of linear maps are applied to their weights, as in GGUF."""
    for name in ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"):
        if fields.flag(name):
            fields.refuse(name, True, f"{name}=false, as the published ones")
    own = {"logits_scaling": 1.0 / fields.number("lm_head_multiplier", 1.0)}
    config = read_llama_like(fields.under({**fields.raw, **own}), tensor_names="falcon_h1")
    if config.activation != "silu":
        fields.refuse("hidden_act", fields.raw["hidden_act"], "silu, which convolutions have")
    has_norm = fields.flag("mamba_rms_norm")
    if has_norm and fields.flag("mamba_norm_before_gate", True):
        fields.refuse("mamba_norm_before_gate", True, "false there beside mamba_rms_norm=true")
    inner = fields.count("mamba_expand") * config.hidden_size
    if fields.raw["mamba_d_ssm"] is not None:
        inner = fields.count("mamba_d_ssm")
    recurrent = read_mamba(fields, frozenset(range(config.num_layers)), inner, has_norm)
    return replace(
        config,
        recurrent=replace(recurrent, is_beside_attention=True),
        weight_factors=_weight_factors(fields, recurrent),
    )


def _weight_factors(
    fields: ConfigFields, recurrent: RecurrentConfig
) -> Mapping[str, tuple[RowFactor, ...]]:
    """Returns the factors that are not 1."""
    attention_in, key, attention_out, ssm_in, ssm_out = (
        fields.number(f"{name}_multiplier", 1.0)
        for name in ("attention_in", "key", "attention_out", "ssm_in", "ssm_out")
    )
    gate, down = fields.numbers("mlp_multipliers", 2)
    whole = {
        "self_attn.q_proj": attention_in,
        "self_attn.k_proj": attention_in * key,
        "self_attn.v_proj": attention_in,
        "self_attn.o_proj": attention_out,
        "mamba.out_proj": ssm_out,
        "feed_forward.gate_proj": gate,
        "feed_forward.down_proj": down,
    }
    values, keys = recurrent.out_columns, recurrent.key_heads * recurrent.key_dim
    sizes = (values, values, keys, keys, recurrent.heads)
    parts = zip(sizes, fields.numbers("ssm_multipliers", len(sizes)), strict=True)
    factors = {name: (RowFactor(0, factor),) for name, factor in whole.items()} | {
        "mamba.in_proj": tuple(RowFactor(rows, ssm_in * factor) for rows, factor in parts)
    }
    return {
        name: each for name, each in factors.items() if any(part.factor != 1.0 for part in each)
    }
