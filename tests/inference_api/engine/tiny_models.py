"""Tiny random models of every family, written by transformers' own classes."""

import json
import tempfile
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, PreTrainedModel

VOCAB_SIZE = 300
EOS = 2
CONTEXT = 128

BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": EOS,
    "initializer_range": 0.2,  # large enough for logits to differ from token to token
}
GATED: dict[str, Any] = {**BASE, "intermediate_size": 96, "num_key_value_heads": 2}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.7,
    "logits_scaling": 1.7,
}
ALTERNATING = {
    "use_sliding_window": True,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention"],
}
MIXTURE = {
    "head_dim": 16,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}

DEEPSEEK_MIXTURE: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}

NO_PAD: dict[str, Any] = {**GATED, "pad_token_id": None}  # their own is beyond the vocabulary
GEMMA3: dict[str, Any] = {
    **NO_PAD,
    "hidden_size": 96,  # whose root, by which embeddings are multiplied, is no short number
    "head_dim": 24,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
LOCAL_ROPE = {"rope_type": "default", "rope_theta": 500_000.0}
HALF_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3, 1.4, 1.9, 2.5],
    "long_factor": [1.0, 1.4, 2.3, 4.4, 9.9, 12.5],
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
GPT_OSS: dict[str, Any] = {
    **GATED,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 7,
    "rope_parameters": {**YARN, "truncate": False},
}

LFM2: dict[str, Any] = {
    **NO_PAD,
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
}

DEEPSEEK: dict[str, Any] = {
    **GATED,
    **DEEPSEEK_MIXTURE,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
DEEPSEEK_YARN = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": 1000.0, "factor": 1.0}
MISTRAL4: dict[str, Any] = {
    **DEEPSEEK,
    "pad_token_id": None,
    "rope_parameters": {
        **DEEPSEEK_YARN,
        "mscale": 0.7,
        "original_max_position_embeddings": 8,
        "llama_4_scaling_beta": 0.3,
    },
}

# name: (family prefix of transformers' classes, config)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GATED),
    "llama-llama3-rope": ("Llama", {**GATED, "rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": (
        "Llama",
        {**GATED, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "llama-yarn-rope": ("Llama", {**GATED, "rope_parameters": YARN}),
    "llama-tied": ("Llama", {**GATED, "tie_word_embeddings": True}),
    "llama-biases": ("Llama", {**GATED, "attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("Llama", {**GATED, "head_dim": 24, "hidden_act": "gelu_new"}),
    "mistral-window": ("Mistral", {**GATED, "sliding_window": 9}),
    "qwen2": ("Qwen2", GATED),
    "qwen2-windows": ("Qwen2", {**GATED, **ALTERNATING}),
    "qwen3": ("Qwen3", {**GATED, "head_dim": 16}),
    "granite": ("Granite", {**GATED, **MULTIPLIERS}),
    "mixtral": ("Mixtral", {**GATED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3Moe", {**GATED, **MIXTURE}),
    "qwen3-moe-dense": (
        "Qwen3Moe",
        {**GATED, **MIXTURE, "norm_topk_prob": False, "decoder_sparse_step": 2},
    ),
    "gemma3": ("Gemma3Text", {**GEMMA3, "query_pre_attn_scalar": 20}),
    "gemma3-capped": (
        "Gemma3Text",
        {
            **GEMMA3,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 3.0,
            "rope_parameters": GEMMA3_ROPES,
        },
    ),
    "gpt-oss": ("GptOss", GPT_OSS),
    "glm4": ("Glm4", {**NO_PAD, "head_dim": 16, "rope_parameters": HALF_ROPE}),
    "glm4-moe": (
        "Glm4Moe",
        {
            **GATED,
            **DEEPSEEK_MIXTURE,
            "head_dim": 16,
            "use_qk_norm": True,
            "attention_bias": True,
            "rope_parameters": HALF_ROPE,
        },
    ),
    "glm4-moe-one-group": (
        "Glm4Moe",
        {
            **GATED,
            **DEEPSEEK_MIXTURE,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            **DEEPSEEK,
            "topk_method": "group_limited_greedy",
            "rope_parameters": {**DEEPSEEK_YARN, "mscale": 0.7},
        },
    ),
    "deepseek-v2-lite": (
        "DeepseekV2",
        {**DEEPSEEK, "q_lora_rank": None, "n_group": None, "topk_group": None},
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {**DEEPSEEK, "attention_bias": True, "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek-v3-one-group": ("DeepseekV3", {**DEEPSEEK, "n_group": 1, "topk_group": 1}),
    "olmo2": ("Olmo2", NO_PAD),
    "olmo3": (
        "Olmo3",
        {
            **NO_PAD,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 7,
            "rope_parameters": {"full_attention": YARN, "sliding_attention": LOCAL_ROPE},
        },
    ),
    "exaone4": (
        "Exaone4",
        {**NO_PAD, "num_hidden_layers": 4, "sliding_window": 7, "rope_parameters": LLAMA3_ROPE},
    ),
    "ministral3": (
        "Ministral3",
        {
            **NO_PAD,
            "head_dim": 24,
            "rope_parameters": {
                **YARN,
                "original_max_position_embeddings": 8,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "seed-oss": ("SeedOss", {**NO_PAD, "head_dim": 24}),
    "ernie4.5": ("Ernie4_5", {**NO_PAD, "head_dim": 24, "use_bias": True}),
    "ernie4.5-moe": (
        "Ernie4_5_Moe",
        {
            **NO_PAD,
            "num_hidden_layers": 3,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "mistral4": ("Mistral4", MISTRAL4),
    "mistral4-one-group": ("Mistral4", {**MISTRAL4, "n_group": 1, "topk_group": 1}),
    "hunyuan": (
        "HunYuanDenseV1",
        {
            **NO_PAD,
            "head_dim": 24,
            "rope_parameters": DYNAMIC_ROPE,
        },
    ),
    "hunyuan-moe": (
        "HunYuanMoEV1",
        {**NO_PAD, "head_dim": 16, "num_experts": 7, "moe_topk": 3, "attention_bias": True},
    ),
    "glm4-moe-lite": (
        "Glm4MoeLite",
        {**DEEPSEEK, "n_group": 1, "topk_group": 1, "mlp_layer_types": ["dense", "sparse"]},
    ),
    "phi3": (
        "Phi3",
        {
            **NO_PAD,
            "sliding_window": 9,
            "max_position_embeddings": 4 * CONTEXT,
            "original_max_position_embeddings": CONTEXT,
            "rope_parameters": LONGROPE,
        },
    ),
    "phi3-long-rope": (
        "Phi3",
        {
            **NO_PAD,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 32,
            "rope_parameters": LONGROPE,
        },
    ),
    "smollm3": ("SmolLM3", {**NO_PAD, "num_hidden_layers": 4}),
    "falcon-7b": ("Falcon", {**BASE, "multi_query": True, "parallel_attn": True}),
    "falcon-40b": ("Falcon", {**BASE, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-11b": (
        "Falcon",
        {
            **BASE,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "tie_word_embeddings": False,
        },
    ),
    "falcon-sequential": (
        "Falcon",
        {**BASE, "multi_query": False, "parallel_attn": False, "bias": True, "ffn_hidden_size": 96},
    ),
}

DELTA: dict[str, Any] = {
    **NO_PAD,
    "initializer_range": 0.1,  # with more transformers' own two forms differ by 3e-4
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
DELTA_MIXTURE = {**DELTA, **MIXTURE, "head_dim": 32, "shared_expert_intermediate_size": 64}
OLMO_HYBRID: dict[str, Any] = {
    **NO_PAD,
    "initializer_range": 0.1,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
}
KIMI_LINEAR: dict[str, Any] = {
    **NO_PAD,
    "bos_token_id": None,
    "initializer_range": 0.1,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "linear_head_dim": 32,
    "linear_num_heads": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.7,
}

GRANITE_HYBRID: dict[str, Any] = {
    **GATED,
    **MULTIPLIERS,
    "initializer_range": 0.1,
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
    "shared_intermediate_size": 64,
}

FALCON_H1: dict[str, Any] = {
    **NO_PAD,
    "initializer_range": 0.1,
    "head_dim": 24,
    "mamba_d_ssm": 128,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.7,
    "key_multiplier": 0.8,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.7, 1.3, 0.8, 1.1, 1.2],
    "mlp_multipliers": [0.9, 1.4],
}
NEMOTRON: dict[str, Any] = {
    **NO_PAD,
    "initializer_range": 0.1,
    "head_dim": 24,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 48,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 16,
    "time_step_min": 1e-30,  # a bound that transformers has in prompts and not in steps
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64,
}

HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {  # with recurrent layers, which torch has not
    "lfm2": ("Lfm2", {**LFM2, "block_auto_adjust_ff_dim": False, "conv_bias": True}),
    "lfm2-narrowed": ("Lfm2", {**LFM2, "intermediate_size": 90, "block_multiple_of": 32}),
    "lfm2-moe": (
        "Lfm2Moe",
        {
            **LFM2,
            "conv_L_cache": 4,
            "num_dense_layers": 1,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "qwen3.5": ("Qwen3_5Text", DELTA),
    "qwen3.5-moe": ("Qwen3_5MoeText", DELTA_MIXTURE),
    "granite4": ("GraniteMoeHybrid", {**GRANITE_HYBRID, "num_local_experts": 0}),
    "granite4-moe": (
        "GraniteMoeHybrid",
        {
            **GRANITE_HYBRID,
            "mamba_n_groups": 1,
            "intermediate_size": 32,
            "num_local_experts": 4,
            "position_embedding_type": "rope",
        },
    ),
    "falcon-h1": ("FalconH1", FALCON_H1),
    "falcon-h1-norm": (
        "FalconH1",
        {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "nemotron": ("NemotronH", NEMOTRON),
    "nemotron-dense": (
        "NemotronH",
        {**NEMOTRON, "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
    ),
    "nemotron-super": (
        "NemotronH",
        {
            **NEMOTRON,
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
            "moe_latent_size": 32,
        },
    ),
    "qwen3-next": ("Qwen3Next", {**DELTA_MIXTURE, "decoder_sparse_step": 2}),
    "olmo-hybrid": ("OlmoHybrid", OLMO_HYBRID),
    "olmo-hybrid-turned": (
        "OlmoHybrid",
        {**OLMO_HYBRID, "linear_allow_neg_eigval": False, "rope_parameters": LOCAL_ROPE},
    ),
    "kimi-linear": ("KimiLinear", KIMI_LINEAR),
    "kimi-linear-one-group": (
        "KimiLinear",
        {**KIMI_LINEAR, "n_group": 1, "topk_group": 1, "q_lora_rank": 32, "norm_topk_prob": False},
    ),
}


GEMMA4: dict[str, Any] = {
    **GEMMA3,
    "initializer_range": 0.1,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "head_dim": 24,
    "global_head_dim": 48,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 3.0,
}
GEMMA4S: dict[str, tuple[str, dict[str, Any]]] = {  # layers of several shapes: torch has one
    "gemma4": ("Gemma4Text", {**GEMMA4, "global_head_dim": 512}),
    "gemma4-one-projection": (
        "Gemma4Text",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "gemma4-shared": (
        "Gemma4Text",
        {
            **GEMMA4,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": VOCAB_SIZE,
        },
    ),
    "gemma4-inputs": (
        "Gemma4Text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 64,
            "vocab_size_per_layer_input": VOCAB_SIZE,
        },
    ),
    "gemma4-moe": (
        "Gemma4Text",
        {
            **GEMMA4,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "gemma4-unified": ("Gemma4UnifiedText", {**GEMMA4, "attention_k_eq_v": True}),
}

GEMMA3N: dict[str, Any] = {
    **GEMMA3,
    "initializer_range": 0.1,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 3.0,
    "intermediate_size": [96, 64, 96, 128],
    "activation_sparsity_pattern": [0.95, 0.0, 0.6, 0.0],
    "num_kv_shared_layers": 2,
    "laurel_rank": 32,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB_SIZE - 20,  # the last ones have none of their own
}
GEMMA3NS: dict[str, tuple[str, dict[str, Any]]] = {  # with streams, which torch has not
    "gemma3n": ("Gemma3nText", GEMMA3N),
    "gemma3n-two-streams": ("Gemma3nText", {**GEMMA3N, "altup_num_inputs": 2}),
}
GEMMAS = GEMMA4S | GEMMA3NS


def folder_of(name: str) -> Path:
    """Of a model that all tests share: nothing may be changed there."""
    folder = Path(tempfile.gettempdir()) / "tiny_models" / name
    if not folder.exists():
        transformers_model(name)
    return folder


@cache
def transformers_model(name: str) -> PreTrainedModel:
    """The model of that folder."""
    with torch.inference_mode(False):  # transformers updates buffers outside of it
        model = make_model(name, draft := Path(tempfile.mkdtemp()))
    folder = Path(tempfile.gettempdir()) / "tiny_models" / name
    folder.parent.mkdir(exist_ok=True)
    with suppress(OSError):  # another worker was faster
        draft.rename(folder)
    return model


def make_model(name: str, folder: Path, **changes: object) -> PreTrainedModel:
    """Build model `name`, save it to `folder` with a tokenizer, and return it. `changes`: of its
    config."""
    family, values = (MODELS | HYBRIDS | GEMMAS)[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**deepcopy(values | changes))
    model: PreTrainedModel = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(
        config
    )
    for parameter_name, parameter in (*model.named_parameters(), *model.named_buffers()):
        # Biases and norms too, or nothing would test them.
        if parameter_name.endswith("inv_freq"):
            continue
        if parameter.ndim == 1 or parameter_name.endswith("_bias"):
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
        if parameter_name.endswith("modality_router.weight"):  # what it reads is small
            torch.nn.init.normal_(parameter, std=4.0)
    model.eval().save_pretrained(folder)
    if family == "OlmoHybrid":
        publish_olmo_hybrid(folder, model.config)
    write_tokenizer(folder)
    return model


def publish_olmo_hybrid(folder: Path, config: PreTrainedConfig) -> None:
    """Names and cuts tensors as published files do: transformers gives norms the same name in all
    layers when it saves, and cuts convolutions into thirds."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    for layer, kind in enumerate(config.layer_types):
        prefix = f"model.layers.{layer}"
        if kind == "full_attention":
            norm = tensors.pop(f"{prefix}.feedforward_layer_norm.weight")
            tensors[f"{prefix}.post_attention_layernorm.weight"] = norm
            continue
        names = [f"{prefix}.linear_attn.{each}_conv1d.weight" for each in "qkv"]
        whole = torch.cat([tensors[name] for name in names])
        parts = whole.tensor_split((keys, 2 * keys))
        tensors |= {name: part.clone() for name, part in zip(names, parts, strict=True)}
    save_file(tensors, file)


def write_tokenizer(folder: Path) -> None:
    """A word-level tokenizer.json of VOCAB_SIZE ids."""
    vocabulary = {f"t{i}": i for i in range(VOCAB_SIZE)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
    tokenizer = {"model": model, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
