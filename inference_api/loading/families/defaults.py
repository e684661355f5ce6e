"""Values of fields that a config.json may leave out, from transformers' config classes (5.23)."""

from collections.abc import Mapping
from typing import Any

NULLABLE = frozenset(  # fields for which null is a value, and not the default
    {"final_logit_softcapping", "hidden_size_per_layer_input", "mamba_d_ssm", "q_lora_rank"}
    | {"sliding_window"}
)
_SHORT = {  # fields of most families
    "context": "max_position_embeddings",
    "eps": "rms_norm_eps",
    "is_tied": "tie_word_embeddings",
    "kv_heads": "num_key_value_heads",
    "original": "original_max_position_embeddings",
    "theta": "rope_theta",
    "window": "sliding_window",
}


def _usual(**values: Any) -> dict[str, Any]:
    """Returns values by the names of fields, some of which are `_SHORT`."""
    return {_SHORT.get(name, name): value for name, value in values.items()}


_YARN = _usual(rope_type="yarn", mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
_ERNIE = _usual(context=131_072, eps=1e-5, theta=500_000.0, is_tied=True)
_GEMMA = {
    **_usual(context=131_072, kv_heads=4, head_dim=256, theta=1e6, window=512, is_tied=True),
    "vocab_size": 262_144,
    "num_attention_heads": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_local_base_freq": 10_000.0,
    "sliding_window_pattern": 6,
}
_LAYER_INPUTS = {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144}
_GEMMA4 = {
    **_GEMMA,
    **_usual(hidden_size=2304, intermediate_size=9216, num_hidden_layers=30, global_head_dim=512),
    **_LAYER_INPUTS,
}
_DEEPSEEK = {"n_shared_experts": 1, "norm_topk_prob": True, "topk_method": "noaux_tc"}
GLM4_MOE = _DEEPSEEK | _usual(context=131_072, kv_heads=8, eps=1e-5, first_k_dense_replace=1)
KIMI_LINEAR = {
    **GLM4_MOE,
    **_usual(context=1_048_576, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    **_usual(kv_lora_rank=512, linear_conv_kernel_dim=4, linear_head_dim=128, linear_num_heads=32),
    **_usual(moe_intermediate_size=1024, n_routed_experts=256, num_experts_per_tok=8),
    "routed_scaling_factor": 2.446,
}
_MAMBA = {
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
}
_LFM2 = _usual(context=128_000, kv_heads=8, theta=1e6, is_tied=True, norm_eps=1e-5, conv_L_cache=3)
_QWEN = _usual(context=32_768, kv_heads=32, window=4096)
_QWEN3_NEXT = {
    **_usual(context=32_768, kv_heads=2, head_dim=256),
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {  # keys: `model_type`
    "deepseek_v2": {"n_shared_experts": 2, "q_lora_rank": 1536, "topk_method": "greedy"},
    "deepseek_v3": {
        **_DEEPSEEK,
        **_usual(context=4096, first_k_dense_replace=3, q_lora_rank=1536),
        **_usual(n_group=8, topk_group=4, routed_scaling_factor=2.5),
    },
    "ernie4_5": _ERNIE | _usual(kv_heads=2, head_dim=128),
    "ernie4_5_moe": {
        **_ERNIE,
        **_usual(kv_heads=4, moe_intermediate_size=1536, moe_k=6, moe_num_experts=64),
    },
    "exaone4": _usual(kv_heads=32, eps=1e-5, window=4096, sliding_window_pattern=4),
    "falcon_h1": {
        **_MAMBA,
        **_usual(context=8192, kv_heads=8, eps=1e-5, mamba_d_ssm=1024),
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    },
    "gemma3_text": _GEMMA | _usual(window=4096, vocab_size=262_208, query_pre_attn_scalar=256),
    "gemma3n_text": {
        **_GEMMA,
        **_LAYER_INPUTS,
        **_usual(context=32_768, kv_heads=2, vocab_size=262_400, sliding_window_pattern=5),
        **_usual(hidden_size=2048, intermediate_size=16_384, num_hidden_layers=35),
        "final_logit_softcapping": 30.0,
        "altup_active_idx": 0,
        "altup_correct_scale": True,
        "altup_num_inputs": 4,
        "laurel_rank": 64,
        "num_kv_shared_layers": 15,
    },
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4 | _usual(context=262_144, window=1024),
    "glm4": _usual(context=131_072, kv_heads=2, head_dim=128, eps=1.5625e-7, attention_bias=True),
    "glm4_moe": GLM4_MOE,
    "glm4_moe_lite": {
        **GLM4_MOE,
        **_usual(context=202_752, q_lora_rank=768, routed_scaling_factor=1.8),
    },
    "gpt_oss": {
        **_usual(context=131_072, kv_heads=8, head_dim=64, eps=1e-5, theta=150_000.0, window=128),
        **_usual(attention_bias=True, num_experts_per_tok=4),
        "rope_parameters": _usual(rope_type="yarn", factor=32.0, original=4096, truncate=False),
    },
    "granite": {"attention_multiplier": 1.0},
    "granitemoehybrid": {
        **_MAMBA,
        **_usual(intermediate_size=11_008, shared_intermediate_size=1024),
        **_usual(attention_multiplier=1.0, num_experts_per_tok=2, num_local_experts=8),
    },
    "hunyuan_v1_dense": {"rms_norm_eps": 1e-5},
    "hunyuan_v1_moe": {"rms_norm_eps": 1e-5},
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2 | {"num_dense_layers": 2, "use_expert_bias": True},
    "ministral3": {
        **_usual(context=262_144, kv_heads=8, head_dim=128, eps=1e-5),
        "rope_parameters": _YARN | _usual(theta=1e6, factor=16.0, original=16_384),
    },
    "mistral": _usual(context=131_072, kv_heads=8, window=4096),
    "mistral4": {
        **_usual(context=1_048_576, n_shared_experts=1, norm_topk_prob=True, q_lora_rank=1024),
        "rope_parameters": _YARN | _usual(factor=128.0, original=8192),
    },
    "mixtral": _usual(context=131_072, kv_heads=8, eps=1e-5, theta=1e6),
    "nemotron_h": {
        **_usual(context=4096, kv_heads=8, head_dim=128, intermediate_size=21_504),
        **_usual(n_routed_experts=8, num_experts_per_tok=2, norm_topk_prob=True),
        **_usual(mamba_head_dim=64, mamba_num_heads=128, n_groups=8, ssm_state_size=128),
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "mlp_hidden_act": "relu2",
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "topk_method": "noaux_tc",
        "use_conv_bias": True,
    },
    "olmo2": {"rms_norm_eps": 1e-5},
    "olmo3": _usual(eps=1e-5, theta=500_000.0, window=4096, sliding_window_pattern=4),
    "olmo_hybrid": {
        **_usual(context=65_536, eps=1e-6, full_attention_interval=4),
        **_usual(linear_allow_neg_eigval=True, linear_conv_kernel_dim=4),
    },
    "phi3": _usual(context=4096, eps=1e-5, original=4096),
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
    "qwen3_5_moe_text": _QWEN3_NEXT | {"num_experts": 256, "num_experts_per_tok": 8},
    "qwen3_5_text": _QWEN3_NEXT | _usual(kv_heads=4, intermediate_size=12_288),
    "qwen3_moe": _QWEN | _usual(kv_heads=4, moe_intermediate_size=768, num_experts_per_tok=8),
    "qwen3_next": {
        **_QWEN3_NEXT,
        **_usual(intermediate_size=5632, num_experts_per_tok=10, norm_topk_prob=True),
    },
    "seed_oss": _usual(context=524_288, kv_heads=8, head_dim=128, attention_bias=True),
    "smollm3": _usual(context=32_768, kv_heads=4, theta=2e6, is_tied=True),
}
