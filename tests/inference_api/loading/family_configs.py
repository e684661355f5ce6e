"""A small config.json of each of several families."""

from typing import Any

import pytest

from inference_api.errors import StartupError
from inference_api.loading.families.read import read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
QWEN3_MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
GPT_OSS: dict[str, Any] = {
    **LLAMA,
    "model_type": "gpt_oss",
    "num_local_experts": 8,
}
GLM4_MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "glm4_moe",
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_group": 4,
    "topk_group": 2,
}
DEEPSEEK_V2: dict[str, Any] = {
    **GLM4_MOE,
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
DEEPSEEK_V3 = {**DEEPSEEK_V2, "model_type": "deepseek_v3", "q_lora_rank": 48}
FALCON: dict[str, Any] = {
    "model_type": "falcon",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def faults(raw: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(StartupError) as caught:
        read_config(raw)
    return caught.value.faults
