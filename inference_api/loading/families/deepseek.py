"""Reads the config.json of DeepSeek and its relatives: GLM 4.5 to 4.7, Mistral 4, Kimi Linear."""

from dataclasses import replace

from inference_api.loading.config import LatentConfig, ModelConfig
from inference_api.loading.families.defaults import KIMI_LINEAR
from inference_api.loading.families.fields import ConfigFields, Readers
from inference_api.loading.families.llama_like import read_llama_like
from inference_api.loading.families.mixtures import TOP_TWO, read_deepseek_mixture
from inference_api.loading.families.qwen3_next import LINEAR, read_delta
from inference_api.loading.families.ropes import PARTIAL, read_score_magnitude
from inference_api.loading.families.windows import GLOBAL


def _read_v3(fields: ConfigFields) -> ModelConfig:
    fields.allow_only("rope_interleave", True)
    return _read_latents(fields)


def read_mistral4(fields: ConfigFields) -> ModelConfig:
    """Reads Mistral 4: softmax shares, groups scored by their best two experts, and queries that
    grow with their position."""
    return _read_v3(fields.replace(topk_method=TOP_TWO))


def _read_latents(fields: ConfigFields) -> ModelConfig:
    """Reads a model with latent attention and a mixture of experts."""
    rotary_dim = fields.count("qk_rope_head_dim")
    head_dim = fields.count("qk_nope_head_dim") + rotary_dim
    if rotary_dim % 2:
        fields.refuse("qk_rope_head_dim", rotary_dim, "an even one")
    fields.allow_only("mlp_bias", False)
    # Here `head_dim` counts only a head's turned dimensions, so a rotary share would be wrong.
    sizes = {"head_dim": head_dim, "num_key_value_heads": fields.raw.get("num_attention_heads")}
    for name in ("rope_scaling", "rope_parameters"):
        sizes[name] = {**fields.mapping(name), PARTIAL: None}
    fields = fields.replace(**sizes, partial_rotary_factor=None)
    config = read_llama_like(fields, mixture=read_deepseek_mixture)
    rope = config.ropes[0]
    assert rope is not None
    query_rank = None if fields.raw.get("q_lora_rank") is None else fields.count("q_lora_rank")
    return replace(
        config,
        rotary_dim=rotary_dim,
        attention_scale=config.attention_scale * read_score_magnitude(fields, rope),
        latent=LatentConfig(
            query_rank,
            kv_rank=fields.count("kv_lora_rank"),
            value_dim=fields.count("v_head_dim", most=head_dim),
        ),
    )


def _read_glm4_moe(fields: ConfigFields) -> ModelConfig:
    """Reads Llama with DeepSeek's mixture of experts, and rope on part of each head."""
    config = read_llama_like(
        fields,
        has_qk_norm=fields.flag("use_qk_norm"),
        mixture=read_deepseek_mixture,
        usual_rotary_share=0.5,
    )
    return replace(config, has_out_bias=False)


def _read_kimi_linear(fields: ConfigFields) -> ModelConfig:
    """Reads Kimi Linear: Kimi delta attention in most layers, latent attention without rope in the
    others. Missing fields have the values of transformers' KimiLinearConfig."""
    fields.allow_only("mla_use_nope", True)
    fields = fields.or_else({usual: fields.raw.get(name) for name, usual in _KIMI_NAMES.items()})
    delta = fields.mapping("linear_attn_config")
    named = {usual: delta.get(name) for name, usual in _KIMI_DELTA_NAMES.items()}
    fields = fields.under(named).or_else(fields.raw).or_else(KIMI_LINEAR)
    heads, head_dim = fields.count("linear_num_heads"), fields.count("linear_head_dim")
    config = _read_v3(fields)
    full, layers = delta.get("full_attn_layers"), range(1, config.num_layers + 1)
    full = full if isinstance(full, list) else layers[4::4]
    kinds = [GLOBAL if layer in full else LINEAR for layer in layers]
    sizes = {f"linear_num_{kind}_heads": heads for kind in ("key", "value")}
    sizes |= {f"linear_{kind}_head_dim": head_dim for kind in ("key", "value")}
    fields = fields.replace(**sizes).or_else({"layer_types": kinds})
    return replace(
        config,
        ropes=(None,) * config.num_layers,
        tensor_names="kimi_linear",
        recurrent=replace(read_delta(fields, config), kind="kimi_delta", gate_rank=head_dim),
    )


_KIMI_NAMES = {  # usual names of fields, by Kimi's
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "moe_router_activation_func": "scoring_func",
    "num_expert_group": "n_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_KIMI_DELTA_NAMES = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
READERS: Readers = {
    "deepseek_v2": _read_latents,
    "deepseek_v3": _read_v3,
    "glm4_moe": _read_glm4_moe,
    "glm4_moe_lite": _read_v3,
    "kimi_linear": _read_kimi_linear,
}
