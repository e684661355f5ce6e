"""Reads the config.json of Qwen3-Next, Qwen3.5 and Qwen3.6: most layers have a gated delta rule,
the others attention with gated outputs."""

from dataclasses import replace
from functools import partial

from inference_api.loading.config import MixtureConfig, ModelConfig, TensorNames
from inference_api.loading.families.fields import MAX_CONV_WIDTH, ConfigFields, Readers, of_text
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mixtures import ReadMixture, no_mixture, read_qwen3_mixture
from inference_api.loading.families.recurrence import RecurrentConfig
from inference_api.loading.families.windows import GLOBAL

LINEAR = "linear_attention"  # the name of a layer with a delta rule in `layer_types`
# Fields of GGUF files: see `gguf.config`.
IS_SPLIT, IS_TILED, HAS_DECAYS = "has_split_projections", "is_tiled", "has_decays"
MAX_DELTA_DIM = 256
DELTA_LANES = 16  # lanes of the widest vector; must divide both sizes of a head


def _read_qwen3_next(fields: ConfigFields) -> ModelConfig:
    names = "qwen3_next_split" if fields.flag(IS_SPLIT) else "qwen3_next"
    return _read(fields, names, _read_mixture)


def _read_qwen3_5_moe_text(fields: ConfigFields) -> ModelConfig:
    """Reads experts in all layers, with shares that sum to one, and no other MLP."""
    if fields.raw.get("mlp_only_layers"):
        fields.refuse("mlp_only_layers", fields.raw["mlp_only_layers"], "experts in all layers")
    size = fields.raw["moe_intermediate_size"]
    fields = fields.replace(norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    return _read(fields.replace(intermediate_size=size), "qwen3_5", _read_mixture)


def _read(fields: ConfigFields, names: TensorNames, mixture: ReadMixture) -> ModelConfig:
    fields.allow_only("attn_output_gate", True)
    fields.allow_only("output_gate_type", "silu", "swish")
    config = read_llama_like(
        fields, has_qk_norm=True, tensor_names=names, mixture=mixture, usual_rotary_share=0.25
    )
    return replace(config, has_output_gates=True, recurrent=read_delta(fields, config))


def _read_mixture(fields: ConfigFields, num_layers: int) -> MixtureConfig | None:
    mixture = read_qwen3_mixture(fields, num_layers)
    shared = fields.count("shared_expert_intermediate_size")
    return replace(mixture, shared_ffn_size=shared, has_shared_gate=True)


def _delta_layers(fields: ConfigFields, num_layers: int) -> frozenset[int]:
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        interval = fields.count("full_attention_interval")
        kinds = [LINEAR if (layer + 1) % interval else GLOBAL for layer in range(num_layers)]
    is_list = isinstance(kinds, list) and len(kinds) == num_layers
    if not is_list or {*map(str, kinds)} != {GLOBAL, LINEAR}:
        supported = f"{LINEAR} or {GLOBAL} for each of its {num_layers} layers, and some of both"
        fields.refuse("layer_types", kinds, supported)
        return frozenset()
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == LINEAR)


def read_delta(fields: ConfigFields, config: ModelConfig) -> RecurrentConfig:
    fields.allow_only("hidden_act", "silu", "swish")
    heads = fields.count("linear_num_value_heads")
    key_heads = fields.count("linear_num_key_heads")
    if heads % key_heads:
        fields.refuse("linear_num_value_heads", heads, f"a multiple of {key_heads} key heads")
    key_dim = _dim(fields, "linear_key_head_dim")
    value_dim = _dim(fields, "linear_value_head_dim")
    return RecurrentConfig(
        "delta",
        _delta_layers(fields, config.num_layers),
        conv_dim=2 * key_heads * key_dim + heads * value_dim,
        conv_width=fields.count("linear_conv_kernel_dim", least=2, most=MAX_CONV_WIDTH),
        heads=heads,
        key_heads=key_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        is_tiled=fields.flag(IS_TILED),
        has_log_decays=not fields.flag(HAS_DECAYS),
    )


def _dim(fields: ConfigFields, name: str) -> int:
    size = fields.count(name)
    if size % DELTA_LANES or size > MAX_DELTA_DIM:
        fields.refuse(name, size, f"a multiple of {DELTA_LANES} up to {MAX_DELTA_DIM}")
        return DELTA_LANES
    return size


_read_qwen3_5_text = partial(_read, names="qwen3_5", mixture=no_mixture)
READERS: Readers = {
    "qwen3_5": of_text("qwen3_5_text", _read_qwen3_5_text),
    "qwen3_5_moe": of_text("qwen3_5_moe_text", _read_qwen3_5_moe_text),
    "qwen3_5_moe_text": _read_qwen3_5_moe_text,
    "qwen3_5_text": _read_qwen3_5_text,
    "qwen3_next": _read_qwen3_next,
}
