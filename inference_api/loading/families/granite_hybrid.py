"""Reads the config.json of Granite 4: most layers have Mamba-2 (Dao and Gu 2024, arXiv 2405.21060),
the others attention, mostly without rope."""

from dataclasses import replace

from inference_api.loading.config import MixtureConfig, ModelConfig, RecurrentConfig, TensorNames
from inference_api.loading.families.fields import MAX_CONV_WIDTH, ConfigFields
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mixtures import no_mixture, read_mixtral
from inference_api.loading.families.qwen3_next import (
    HAS_DECAYS,
    IS_SPLIT,
    LINEAR,
    MAX_DELTA_DIM,
    MAX_HEADS,
)
from inference_api.loading.families.windows import GLOBAL

MAMBA = "mamba"  # as published files call layers with Mamba-2
_KINDS = {MAMBA: True, LINEAR: True, "attention": False, GLOBAL: False}


def read_granite_hybrid(fields: ConfigFields) -> ModelConfig:
    """Without experts all tokens pass the MLP that is beside them elsewhere. What is left out has
    the values of transformers' GraniteMoeHybridConfig."""
    fields = fields.or_else(_DEFAULTS)
    names: TensorNames = "granite_hybrid_split" if fields.flag(IS_SPLIT) else "granite_hybrid"
    has_experts = fields.count("num_local_experts", least=0) > 0
    shared = fields.count("shared_intermediate_size")
    if not has_experts:
        fields = fields.under({**fields.raw, "intermediate_size": shared})
    config = read_llama_like(
        fields, tensor_names=names, mixture=_read_mixture if has_experts else no_mixture
    )
    if config.activation != "silu":
        fields.refuse("hidden_act", fields.raw["hidden_act"], "silu, which convolutions have")
    position = fields.raw.get("position_embedding_type")
    if position not in (None, "nope", "rope"):
        fields.refuse("position_embedding_type", position, "rope or nope")
    ropes = config.ropes if position == "rope" else (None,) * config.num_layers
    layers = _mamba_layers(fields, config.num_layers)
    recurrent = _read_mamba(fields, config.hidden_size, layers) if layers else None
    return replace(config, ropes=ropes, recurrent=recurrent)


_DEFAULTS = {
    "attention_multiplier": 1.0,
    "intermediate_size": 11_008,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "shared_intermediate_size": 1024,
}


def _read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    mixture = read_mixtral(fields, num_layers)
    return replace(mixture, shared_ffn_size=fields.count("shared_intermediate_size"))


def _mamba_layers(fields: ConfigFields, num_layers: int) -> frozenset[int]:
    name = "layer_types" if fields.raw.get("layer_types") is not None else "layers_block_type"
    kinds = fields.raw.get(name)
    are_mamba = [_KINDS.get(str(kind)) for kind in kinds] if isinstance(kinds, list) else []
    if len(are_mamba) != num_layers or None in are_mamba or all(are_mamba):
        supported = f"{MAMBA} or attention for each of its {num_layers} layers, and some of this"
        fields.refuse(name, kinds, supported)
        return frozenset()
    return frozenset(layer for layer, is_mamba in enumerate(are_mamba) if is_mamba)


def _read_mamba(fields: ConfigFields, hidden_size: int, layers: frozenset[int]) -> RecurrentConfig:
    heads = fields.count("mamba_n_heads", most=MAX_HEADS)
    groups = fields.count("mamba_n_groups", most=MAX_HEADS)
    inner = fields.count("mamba_expand") * hidden_size
    given = fields.raw.get("mamba_d_head")
    value_dim = inner // heads if given in (None, "auto") else fields.count("mamba_d_head")
    key_dim = fields.count("mamba_d_state", most=MAX_DELTA_DIM)
    if heads % groups or value_dim * heads != inner:
        fields.refuse("mamba_n_heads", heads, f"heads that divide {inner} and are whole groups")
    if value_dim % 32 or value_dim > MAX_DELTA_DIM:
        fields.refuse("mamba_d_head", value_dim, f"a multiple of 32 up to {MAX_DELTA_DIM}")
    if key_dim % 16:
        fields.refuse("mamba_d_state", key_dim, "a multiple of 16")
    return RecurrentConfig(
        "mamba2",
        layers,
        conv_dim=inner + 2 * groups * key_dim,
        conv_width=fields.count("mamba_d_conv", least=2, most=MAX_CONV_WIDTH),
        has_bias=fields.flag("mamba_proj_bias"),
        has_conv_bias=fields.flag("mamba_conv_bias"),
        heads=heads,
        key_heads=groups,
        key_dim=key_dim,
        value_dim=value_dim,
        has_log_decays=not fields.flag(HAS_DECAYS),
    )
