"""Converts the metadata of a GGUF file to the fields of a config.json."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.errors import StartupError
from inference_api.loading.families.qwen3_next import HAS_DECAYS, LINEAR
from inference_api.loading.families.ropes import DEFAULT_THETA, ORIGINAL_POSITIONS, QUERY_GROWTH
from inference_api.loading.families.windows import GLOBAL, LOCAL
from inference_api.loading.gguf.hybrids import HYBRIDS, OwnFields, Shapes, by_layer
from inference_api.loading.gguf.names import ARCHITECTURES

Factors = Mapping[str, NDArray[np.float64]]

ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS = (
    f"rope_{name}.weight" for name in ("freqs", "factors_long", "factors_short")
)
LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR = 1.0, 4.0  # llama3's rope has these; GGUF files do not
FACTOR_TOLERANCE = 1e-3
_STILL_FACTOR = 1e29  # files have 1e30 for pairs that do not turn; above this a pair is still
_LAYERS_OF_27B = 62  # layers of the only Gemma 3 size with another scale of queries
_GLM_FLASH_LAYERS, _GLM_FLASH_VOCABULARY = (47, 48), 154_880
_SOFTMAX, _SIGMOID = 1, 2  # values of expert_gating_func
_MODEL_TYPES = {each: kind for kind, each in reversed(ARCHITECTURES.items())} | {
    "nemotron_h_moe": "nemotron_h",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
}


def raw_config(
    architecture: str, metadata: Mapping[str, Any], shapes: Shapes, factors: Factors
) -> dict[str, Any]:
    """Returns the fields that `read_config` reads. `factors` has, by tensor name, the factors that
    slow each rotary pair.

    Raises StartupError if the rotary embedding is not supported.
    """

    def value(key: str) -> Any:
        return metadata.get(f"{architecture}.{key}")

    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    kv_heads = heads if kv_heads is None else kv_heads
    is_mixtral = architecture == "llama" and value("expert_count")
    raw: dict[str, Any] = {
        "model_type": "mixtral" if is_mixtral else _MODEL_TYPES.get(architecture, architecture),
        "vocab_size": shapes.get("token_embd.weight", (0,))[0],
        "hidden_size": value("embedding_length"),
        "num_hidden_layers": value("block_count") - (value("nextn_predict_layers") or 0),
        "num_attention_heads": heads,
        "max_position_embeddings": value("context_length"),
        "tie_word_embeddings": "output.weight" not in shapes,
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "layer_norm_epsilon": value("attention.layer_norm_epsilon"),
        "num_experts": value("expert_count"),
        "moe_intermediate_size": value("expert_feed_forward_length"),
        "final_logit_softcapping": value("final_logit_softcapping"),
        "hidden_size_per_layer_input": value("embedding_length_per_layer_input"),
        **_rope(value, factors, is_truncated=architecture != "gpt-oss"),
    }
    fields = _OWN_FIELDS[architecture](value, shapes) if architecture in _OWN_FIELDS else {}
    if architecture == "gemma4":
        global_rope = {**raw.pop("rope_scaling"), "rope_theta": value("rope.freq_base")}
        local_rope = {"rope_type": "default", "rope_theta": value("rope.freq_base_swa")}
        return raw | fields | {"rope_parameters": {GLOBAL: global_rope, LOCAL: local_rope}}
    if architecture == "falcon":
        return raw | fields | {"num_kv_heads": kv_heads, "new_decoder_architecture": kv_heads != 1}
    return raw | {
        "intermediate_size": value("feed_forward_length"),
        "num_key_value_heads": kv_heads,
        "head_dim": value("attention.key_length") or (heads and value("embedding_length") // heads),
        "attention_bias": "blk.0.attn_output.bias" in shapes,
        "mlp_bias": "blk.0.ffn_down.bias" in shapes,
        "attention_multiplier": value("attention.scale"),
        "embedding_multiplier": value("embedding_scale"),
        "residual_multiplier": value("residual_scale"),
        "logits_scaling": value("logit_scale"),
        "num_local_experts": value("expert_count"),
        "n_routed_experts": value("expert_count"),
        "num_experts_per_tok": value("expert_used_count"),
        "norm_topk_prob": True,  # as for qwen3moe; GGUF has no key for it
        **fields,
    }


def _windows(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Returns the window, and which layers have it."""
    pattern = value("attention.sliding_window_pattern")
    is_by_layer = isinstance(pattern, list)
    return {
        "sliding_window": value("attention.sliding_window"),
        "sliding_window_pattern": None if is_by_layer else pattern,
        "layer_types": [LOCAL if each else GLOBAL for each in pattern] if is_by_layer else None,
    }


def _gemma3(value: Any, shapes: Shapes) -> dict[str, Any]:
    scalar = value("attention.key_length")
    if value("block_count") == _LAYERS_OF_27B:
        scalar = value("embedding_length") / value("attention.head_count")
    return {
        **_windows(value, shapes),
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": value("rope.freq_base_swa"),
        "attn_logit_softcapping": value("attn_logit_softcapping"),
    }


def _gemma3n(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Files have the cutoffs of gates, in standard deviations, not the shares of gates that are
    cut; minus infinity cuts none."""
    cutoffs = value("activation_sparsity_scale")
    return {
        **_windows(value, shapes),
        "model_type": "gemma3n_text",
        "rope_local_base_freq": value("rope.freq_base_swa"),
        "num_kv_shared_layers": value("attention.shared_kv_layers"),
        "vocab_size_per_layer_input": shapes.get("per_layer_token_embd.weight", (0,))[0],
        "altup_active_idx": value("altup.active_idx"),
        "altup_num_inputs": value("altup.num_inputs"),
        "laurel_rank": shapes.get("blk.0.laurel_l.weight", (0,))[0],
        "activation_sparsity_pattern": cutoffs and [NormalDist().cdf(each) for each in cutoffs],
    }


def _gemma4(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Layers with a window have heads of other sizes. If keys and values share a projection, the
    file has one tensor."""
    kinds = _windows(value, shapes)
    num_layers, num_shared = value("block_count"), value("attention.shared_kv_layers") or 0
    kv_heads = by_layer(value, "attention.head_count_kv")
    ffn_sizes = by_layer(value, "feed_forward_length")
    head_dims = {LOCAL: value("attention.key_length_swa"), GLOBAL: value("attention.key_length")}
    layers = list(zip(kinds["layer_types"], kv_heads, strict=True))
    own_layers = range(num_layers - num_shared)
    have_values = [f"blk.{layer}.attn_v.weight" in shapes for layer in own_layers]
    return {
        **kinds,
        "model_type": "gemma4_text",
        "intermediate_size": ffn_sizes[0],
        "use_double_wide_mlp": ffn_sizes[-1] > ffn_sizes[0],
        "num_key_value_heads": kv_heads[0],
        "head_dim": head_dims[LOCAL],
        "per_layer_config": {
            str(layer): {"head_dim": head_dims[kind], "num_key_value_heads": heads}
            for layer, (kind, heads) in enumerate(layers)
        },
        "attention_k_eq_v": not all(have_values),
        "num_kv_shared_layers": num_shared,
        "vocab_size_per_layer_input": shapes.get("per_layer_token_embd.weight", (None,))[0],
        "enable_moe_block": bool(value("expert_count")),
        "top_k_experts": value("expert_used_count"),
    }


def _deepseek2(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Files of GLM-4.7-Flash do not say how experts are chosen."""
    vocab_size = shapes.get("token_embd.weight", (0,))[0]
    is_glm = value("block_count") in _GLM_FLASH_LAYERS and vocab_size == _GLM_FLASH_VOCABULARY
    return _deepseek(value, _SIGMOID if is_glm else _SOFTMAX)


def _kimi_linear(value: Any, shapes: Shapes) -> dict[str, Any]:
    """Layers without key-value heads have Kimi delta attention, with as many heads as attention.
    Files have the rates of decay, not their logarithms."""
    kv_heads = by_layer(value, "attention.head_count_kv")
    return {
        **_deepseek(value, _SIGMOID),
        "model_type": "kimi_linear",
        "layer_types": [GLOBAL if each else LINEAR for each in kv_heads],
        "linear_conv_kernel_dim": value("ssm.conv_kernel"),
        "linear_head_dim": value("kda.head_dim"),
        "linear_num_heads": value("attention.head_count"),
        "norm_topk_prob": True,  # as for llama.cpp, whatever the file says
        HAS_DECAYS: True,
    }


def _deepseek(value: Any, usual_gating: int) -> dict[str, Any]:
    """Returns the fields of latent attention. Keys that end in _mla give the sizes of heads; if a
    file has them, the keys without _mla give the sizes that llama.cpp caches."""
    rotary_dim = value("rope.dimension_count")
    head_dim = value("attention.key_length_mla") or value("attention.key_length")
    mixture = _deepseek_mixture(value, usual_gating)
    return {
        **mixture,
        "model_type": "deepseek_v3" if mixture["topk_method"] == "noaux_tc" else "deepseek_v2",
        "qk_rope_head_dim": rotary_dim,
        "qk_nope_head_dim": head_dim - rotary_dim,
        "v_head_dim": value("attention.value_length_mla") or value("attention.value_length"),
        "q_lora_rank": value("attention.q_lora_rank") or None,
        "kv_lora_rank": value("attention.kv_lora_rank"),
    }


def _ernie_moe(value: Any, shapes: Shapes) -> dict[str, Any]:
    """The size of shared experts comes from the tensors' shapes, because files give wrong ones."""
    width = value("expert_feed_forward_length")
    shared = [shape[0] for name, shape in shapes.items() if name.endswith(".ffn_up_shexp.weight")]
    return {
        "moe_k": value("expert_used_count"),
        "moe_layer_interval": value("interleave_moe_layer_step"),
        "moe_layer_start_index": value("leading_dense_block_count"),
        "moe_num_experts": value("expert_count"),
        "moe_num_shared_experts": shared[0] // width if shared else 0,
    }


def _deepseek_mixture(value: Any, usual_gating: int) -> dict[str, Any]:
    """`usual_gating` is for older files, which do not give it."""
    num_groups = value("expert_group_count") or 1
    gating = value("expert_gating_func") or usual_gating
    of_softmax = "greedy" if num_groups == 1 else "group_limited_greedy"
    methods = {_SOFTMAX: of_softmax, _SIGMOID: "noaux_tc"}
    return {
        "topk_method": methods.get(gating, f"expert_gating_func {gating}"),
        "n_group": num_groups,
        "topk_group": value("expert_group_used_count") or 1,
        "n_shared_experts": value("expert_shared_count") or 0,
        "first_k_dense_replace": value("leading_dense_block_count") or 0,
        "routed_scaling_factor": value("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(value("expert_weights_norm")),
    }


def _glm4_moe(value: Any, shapes: Shapes) -> dict[str, Any]:
    return {
        "use_qk_norm": "blk.0.attn_q_norm.weight" in shapes,
        **_query_biases(value, shapes),
        **_deepseek_mixture(value, usual_gating=_SIGMOID),
    }


def _query_biases(value: Any, shapes: Shapes) -> dict[str, Any]:
    has_biases = "blk.0.attn_q.bias" in shapes
    return {"attention_bias": has_biases, "use_bias": has_biases}


def _hunyuan_moe(value: Any, shapes: Shapes) -> dict[str, Any]:
    width = value("expert_feed_forward_length") or value("feed_forward_length")
    sizes = {"intermediate_size": width, "moe_intermediate_size": width}
    return sizes | {"moe_topk": value("expert_used_count")}


def _olmo2(value: Any, shapes: Shapes) -> dict[str, Any]:
    windows = _windows(value, shapes)
    return windows | {"model_type": "olmo3" if windows["sliding_window"] else "olmo2"}


_OWN_FIELDS: Mapping[str, OwnFields] = {  # keys: architectures
    **HYBRIDS,
    "deepseek2": _deepseek2,
    "ernie4_5": _query_biases,
    "ernie4_5-moe": _ernie_moe,
    "exaone4": _windows,
    "falcon": lambda value, shapes: {
        "ffn_hidden_size": value("feed_forward_length"),
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in shapes else 1,
    },
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "glm4": _query_biases,
    "glm4moe": _glm4_moe,
    "gpt-oss": lambda value, shapes: {
        "intermediate_size": value("expert_feed_forward_length"),
        "sliding_window": value("attention.sliding_window"),
    },
    "hunyuan-moe": _hunyuan_moe,
    "kimi-linear": _kimi_linear,
    "mistral4": lambda value, shapes: _deepseek(value, _SOFTMAX) | {"model_type": "mistral4"},
    "olmo2": _olmo2,
    "phi3": lambda value, shapes: {"sliding_window": value("attention.sliding_window")},
    "seed_oss": _query_biases,
}


def _rope(value: Any, factors: Factors, is_truncated: bool) -> dict[str, Any]:
    """`is_truncated`: whether yarn's bounds are whole pairs; GGUF has no key for it."""
    theta = value("rope.freq_base") or DEFAULT_THETA
    turned, head_dim = value("rope.dimension_count"), value("attention.key_length")
    if head_dim is None and value("attention.head_count"):
        head_dim = value("embedding_length") // value("attention.head_count")
    partial = turned / head_dim if turned and head_dim else None
    scaling: dict[str, Any] = {"rope_type": "default"}
    kind = value("rope.scaling.type")
    if kind not in (None, "none"):
        scaling = {
            "rope_type": kind,
            "factor": value("rope.scaling.factor"),
            "beta_fast": value("rope.scaling.yarn_beta_fast"),
            "beta_slow": value("rope.scaling.yarn_beta_slow"),
            "truncate": is_truncated,
            QUERY_GROWTH: value("attention.temperature_scale"),
        }
        if share := 10 * (value("rope.scaling.yarn_log_multiplier") or 0):
            # DeepSeek's yarn magnitudes: scores are scaled, and not the turned dimensions.
            scaling |= {"mscale": share, "mscale_all_dim": share}
    if ROPE_FACTORS in factors:
        scaling = rope_of_factors(factors[ROPE_FACTORS], float(theta))
    elif LONG_FACTORS in factors or SHORT_FACTORS in factors:
        scaling = {
            "rope_type": "longrope",
            "long_factor": factors.get(LONG_FACTORS, np.empty(0)).tolist(),
            "short_factor": factors.get(SHORT_FACTORS, np.empty(0)).tolist(),
            "attention_factor": value("rope.scaling.attn_factor"),
        }
    context = scaling.get(ORIGINAL_POSITIONS, value("rope.scaling.original_context_length"))
    return {
        "rope_theta": theta,
        "partial_rotary_factor": partial,
        "rope_scaling": scaling,
        ORIGINAL_POSITIONS: context,
    }


def rope_of_factors(factors: NDArray[np.float64], theta: float) -> dict[str, Any]:
    """Returns the scaling that gives these factors. Some pairs may not turn at all."""
    turned = factors < _STILL_FACTOR
    if turned.all():
        return llama3_rope(factors, theta)
    if not (np.all(factors[turned] == 1.0) and np.all(turned[:-1] >= turned[1:])):
        raise StartupError(
            ["The GGUF file's rope_freqs.weight is no proportional rope; choose another file."]
        )
    return {"rope_type": "proportional", "partial_rotary_factor": float(turned.mean())}


def llama3_rope(factors: NDArray[np.float64], theta: float) -> dict[str, Any]:
    """Returns the llama3 scaling that gives these factors. Raises StartupError if none does.

    Between the pairs that keep their frequency and the pairs slowed by the whole factor, the kept
    share grows linearly with the turns over the original context (see `rope`). One such pair
    determines the context; all others must then agree.
    """
    factor = float(factors.max())
    base = theta ** -(np.arange(len(factors)) / len(factors))
    between = np.flatnonzero((factors > 1 + FACTOR_TOLERANCE) & (factors < factor * 0.99))
    if factor > 1 and len(between):
        pair = between[0]
        kept = (1 / factors[pair] - 1 / factor) / (1 - 1 / factor)
        turns = LOW_FREQ_FACTOR + kept * (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        context = round(turns * 2 * math.pi / base[pair])
        all_turns = context * base / (2 * math.pi)
        shares = (all_turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        shares = np.clip(shares, 0, 1)
        if np.allclose(1 / (shares + (1 - shares) / factor), factors, rtol=FACTOR_TOLERANCE):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW_FREQ_FACTOR,
                "high_freq_factor": HIGH_FREQ_FACTOR,
                "original_max_position_embeddings": context,
            }
    raise StartupError(
        "The GGUF file's rope_freqs.weight is no llama3 scaling; choose the model's "
        "safetensors or another model."
    )
