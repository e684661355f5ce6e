"""Reads the config.json of families with Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): Falcon-H1,
where attention reads the same input in every layer, Granite 4, with some layers of attention, and
Nemotron-H and 3, where a layer is attention, Mamba-2, an MLP or experts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from inference_api.kernels.packing import GROUP
from inference_api.loading.config import MixtureConfig, ModelConfig, RowFactor
from inference_api.loading.families.fields import MAX_CONV_WIDTH, MAX_LAYERS, ConfigFields, Readers
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mixtures import no_mixture, read_deepseek_mixture, read_mixtral
from inference_api.loading.families.qwen3_next import (
    DELTA_LANES,
    HAS_DECAYS,
    IS_SPLIT,
    LINEAR,
    MAX_DELTA_DIM,
)
from inference_api.loading.families.recurrence import RecurrentConfig
from inference_api.loading.families.windows import GLOBAL

MAMBA = "mamba"  # the name of a layer with Mamba-2 in published files
EXPERTS, MLP = "moe", "mlp"  # names of layers of Nemotron-H
_KINDS = {MAMBA: LINEAR, "attention": GLOBAL}  # our names of layers, by some of theirs
_LETTERS = {"M": LINEAR, "*": GLOBAL, "E": EXPERTS, "-": MLP}
# Files use one name or the other.
_NO_LIMITS: tuple[list[object], ...] = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])


def _read_mamba(
    fields: ConfigFields, layers: frozenset[int], inner: int, has_norm: bool = True
) -> RecurrentConfig:
    """Reads Mamba-2. `inner` is the size of the mixer's output."""
    heads = fields.count("mamba_n_heads")
    groups = fields.count("mamba_n_groups", most=heads)
    head_size = fields.raw.get("mamba_d_head")
    value_dim = inner // heads if head_size in (None, "auto") else fields.count("mamba_d_head")
    key_dim = fields.count("mamba_d_state", most=MAX_DELTA_DIM)
    if heads % groups or value_dim * heads != inner:
        fields.refuse("mamba_n_heads", heads, f"heads that divide {inner} and are whole groups")
    for name, size in (("mamba_d_head", value_dim), ("mamba_d_state", key_dim)):
        if size % DELTA_LANES or size > MAX_DELTA_DIM:
            fields.refuse(name, size, f"a multiple of {DELTA_LANES} up to {MAX_DELTA_DIM}")
    if has_norm and inner // groups % GROUP:
        fields.refuse("mamba_n_groups", groups, f"groups of a multiple of {GROUP} channels")
    if fields.raw.get("time_step_limit") not in (None, *_NO_LIMITS):
        fields.refuse("time_step_limit", fields.raw["time_step_limit"], "steps of any length")
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
        has_norm=has_norm,
    )


def _read_falcon_h1(fields: ConfigFields) -> ModelConfig:
    """Reads Falcon-H1. Multipliers of linear maps are applied to their weights, as in GGUF."""
    for name in ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"):
        fields.allow_only(name, False)
    fields.allow_only("hidden_act", "silu", "swish")
    divisor = 1.0 / fields.number("lm_head_multiplier", 1.0)
    config = read_llama_like(fields.replace(logits_scaling=divisor), tensor_names="falcon_h1")
    has_norm = fields.flag("mamba_rms_norm")
    if has_norm and fields.flag("mamba_norm_before_gate", True):
        fields.refuse("mamba_norm_before_gate", True, "false there beside mamba_rms_norm=true")
    inner = fields.count("mamba_expand") * config.hidden_size
    if fields.raw["mamba_d_ssm"] is not None:
        inner = fields.count("mamba_d_ssm")
    recurrent = _read_mamba(fields, frozenset(range(config.num_layers)), inner, has_norm)
    return replace(
        config,
        recurrent=replace(recurrent, is_beside_attention=True),
        weight_factors=_weight_factors(fields, recurrent),
    )


def _weight_factors(
    fields: ConfigFields, recurrent: RecurrentConfig
) -> Mapping[str, tuple[RowFactor, ...]]:
    """Returns the factors of weights that are not 1, by the weights' names."""
    attention_in, key, attention_out, ssm_in, ssm_out = (
        fields.number(f"{name}_multiplier", 1.0)
        for name in ("attention_in", "key", "attention_out", "ssm_in", "ssm_out")
    )
    gate, down = fields.numbers("mlp_multipliers", 2)
    plain = {
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
    factors = {name: (RowFactor(0, factor),) for name, factor in plain.items()} | {
        "mamba.in_proj": tuple(RowFactor(rows, ssm_in * factor) for rows, factor in parts)
    }
    return {
        name: each for name, each in factors.items() if any(part.factor != 1.0 for part in each)
    }


def _read_granite_hybrid(fields: ConfigFields) -> ModelConfig:
    """Reads Granite 4. Models without experts have only the MLP that others have beside experts."""
    names = "granite_hybrid_split" if fields.flag(IS_SPLIT) else "granite_hybrid"
    has_experts = fields.count("num_local_experts", least=0) > 0
    shared = fields.count("shared_intermediate_size")
    if not has_experts:
        fields = fields.replace(intermediate_size=shared)
    config = read_llama_like(
        fields, tensor_names=names, mixture=_read_mixture if has_experts else no_mixture
    )
    fields.allow_only("hidden_act", "silu", "swish")
    fields.allow_only("position_embedding_type", "nope", "rope")
    has_rope = fields.raw.get("position_embedding_type") == "rope"
    ropes = config.ropes if has_rope else (None,) * config.num_layers
    layers = _mamba_layers(fields, config.num_layers)
    inner = fields.count("mamba_expand") * config.hidden_size
    recurrent = _read_mamba(fields, layers, inner) if layers else None
    return replace(config, ropes=ropes, recurrent=recurrent)


def _read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
    mixture = read_mixtral(fields, num_layers)
    return replace(mixture, shared_ffn_size=fields.count("shared_intermediate_size"))


def _mamba_layers(fields: ConfigFields, num_layers: int) -> frozenset[int]:
    name = "layer_types" if fields.raw.get("layer_types") is not None else "layers_block_type"
    given = fields.raw.get(name)
    kinds = [_KINDS.get(str(kind), str(kind)) for kind in given] if isinstance(given, list) else []
    if len(kinds) != num_layers or not {GLOBAL} <= {*kinds} <= {GLOBAL, LINEAR}:
        supported = f"{MAMBA} or attention for each of its {num_layers} layers, and some of this"
        fields.refuse(name, given, supported)
        return frozenset()
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == LINEAR)


_NAMES = {  # the names of some newer files, which we use, by those of most files
    "conv_kernel": "mamba_d_conv",
    "mamba_head_dim": "mamba_d_head",
    "mamba_num_heads": "mamba_n_heads",
    "n_groups": "mamba_n_groups",
    "ssm_state_size": "mamba_d_state",
    "use_conv_bias": "mamba_conv_bias",
}


def _read_nemotron_h(fields: ConfigFields) -> ModelConfig:
    """Reads Nemotron-H, which has no rope, no attention biases and no gates."""
    fields.allow_only("mamba_hidden_act", "silu", "swish")
    fields.allow_only("sliding_window")
    kinds = _kinds(fields)
    fields = fields.replace(
        attention_bias=False,
        hidden_act=fields.raw["mlp_hidden_act"],
        mamba_proj_bias=fields.raw.get("use_bias"),
        num_hidden_layers=len(kinds),
        rms_norm_eps=fields.raw["layer_norm_epsilon"],
        **{usual: fields.raw.get(usual, fields.raw[name]) for name, usual in _NAMES.items()},
    )

    def of_kind(*wanted: str) -> frozenset[int]:
        return frozenset(layer for layer, kind in enumerate(kinds) if kind in wanted)

    def read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig:
        fields.allow_only("mlp_bias", False)
        mixture = read_deepseek_mixture(fields, num_layers)
        return replace(
            mixture,
            dense_layers=of_kind(MLP),
            shared_ffn_size=fields.count("moe_shared_expert_intermediate_size"),
            latent_size=fields.count("moe_latent_size", 0, fields.count("hidden_size"), least=0),
        )

    config = read_llama_like(
        fields, tensor_names="nemotron_h", mixture=read_mixture if of_kind(EXPERTS) else no_mixture
    )
    inner = fields.count("mamba_n_heads") * fields.count("mamba_d_head")
    return replace(
        config,
        is_mlp_gated=False,
        ropes=(None,) * len(kinds),
        recurrent=_read_mamba(fields, of_kind(LINEAR), inner),
        mlp_layers=of_kind(EXPERTS, MLP),
    )


def _kinds(fields: ConfigFields) -> Sequence[str]:
    """Returns the kind of each layer, from a list of words or a string of letters."""
    names = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    name = next((each for each in names if fields.raw.get(each) is not None), names[0])
    given = fields.raw.get(name)
    codes = _LETTERS if isinstance(given, str) else {kind: kind for kind in _LETTERS.values()}
    listed = given if isinstance(given, list | str) else ()
    kinds = [codes.get(_KINDS.get(str(kind), str(kind)), "") for kind in listed[: MAX_LAYERS + 1]]
    if not {GLOBAL, LINEAR} <= {*kinds} <= {*_LETTERS.values()} or len(kinds) > MAX_LAYERS:
        supported = f"up to {MAX_LAYERS} of {' '.join(codes)}, and some of the first two"
        fields.refuse(name, given, supported)
        return [GLOBAL]
    return kinds


READERS: Readers = {
    "falcon_h1": _read_falcon_h1,
    "granitemoehybrid": _read_granite_hybrid,
    "nemotron_h": _read_nemotron_h,
}
