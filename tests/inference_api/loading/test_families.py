import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference_api.engine.rope import frequencies
from inference_api.errors import StartupError
from inference_api.loading.config import (
    ExpertGroups,
    LatentConfig,
    LayerRange,
    MixtureConfig,
    SwiGluConfig,
)
from inference_api.loading.families.read import read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
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
    "num_key_value_heads": 4,
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


def test_what_old_files_leave_out_has_its_usual_value() -> None:
    config = read_config(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.max_positions) == (4, 16, 2048)
    assert [rope and rope.theta for rope in config.ropes] == [10_000.0] * 3
    assert math.isclose(config.attention_scale, 0.25)
    assert not config.is_head_tied


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
    ],
)
def test_all_spellings_of_rope_are_read(spelling: dict[str, Any]) -> None:
    [rope, *_] = read_config({**LLAMA, **spelling}).ropes
    assert rope is not None
    assert (rope.kind, rope.theta, rope.factor) == ("linear", 5e5, 2.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope_type='dynamic'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": "yarn"}, "rope_scaling='yarn'"),
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
        ({"hidden_act": ["silu"]}, "hidden_act="),
        ({"quantization_config": {"bits": 4}}, "quant_method=None"),
        ({"hidden_size": "big"}, "hidden_size='big'"),
        ({"vocab_size": None}, "vocab_size=None"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True"),
        ({"rms_norm_eps": -1}, "rms_norm_eps=-1"),
        ({"num_key_value_heads": 3}, "4 heads of 16 over 3 key-value heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 in config.json is not an"),
        ({"num_hidden_layers": 1025}, "an integer from 1 to 1024"),
        ({"head_dim": 10**400}, "head_dim=1000"),
        ({"max_position_embeddings": 2**30 + 1}, f"an integer from 1 to {2**30}"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps=nan"),
        ({"rope_theta": math.inf}, "rope_theta=inf in config.json is not a number from 1e-30"),
        ({"attention_multiplier": 10**400}, "attention_multiplier=1000"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "8"}}, "factor='8'"),
        (
            {"rope_scaling": {"rope_type": "llama3", "high_freq_factor": 1.0}},
            "low_freq_factor=1.0",
        ),
        ({"attention_bias": "false"}, "attention_bias='false' in config.json is neither true"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings=1"),
    ],
)
def test_what_cannot_be_served_is_named(changes: dict[str, Any], named: str) -> None:
    [fault] = faults({**LLAMA, **changes})
    assert named in fault


@pytest.mark.parametrize("key", ["hidden_act", "hidden_size", "rope_scaling", "model_type"])
def test_long_values_are_not_repeated(key: str) -> None:
    [fault] = faults({**LLAMA, key: "x" * 100_000})
    assert len(fault) < 600  # it has the names of all families


def test_ends_that_the_model_cannot_draw_are_left_out() -> None:
    assert read_config({**LLAMA, "eos_token_id": [2, 100, True, -1]}).eos_token_ids == {2}


def test_all_faults_are_reported_at_once() -> None:
    assert len(faults({**LLAMA, "hidden_act": "mish", "vocab_size": 0, "head_dim": "x"})) == 3


def test_falcon_with_alibi_is_refused() -> None:
    [fault] = faults({**FALCON, "alibi": True})
    assert "alibi=True" in fault


def test_the_falcons_differ_only_in_data() -> None:
    old = read_config(FALCON)
    grouped = read_config({**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2})
    one_norm = read_config(
        {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}
    )
    sequential = read_config({**FALCON, "parallel_attn": False, "multi_query": False})
    assert (old.num_kv_heads, old.is_parallel, old.has_mlp_norm) == (1, True, False)
    assert (grouped.num_kv_heads, grouped.is_parallel, grouped.has_mlp_norm) == (2, True, True)
    assert (one_norm.num_kv_heads, one_norm.has_mlp_norm) == (4, False)
    assert (sequential.is_parallel, sequential.has_mlp_norm) == (False, True)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 8}, (8, 8, 8)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None, None)),
        ({"model_type": "llama", "sliding_window": 8}, (None, None, None)),
        ({"model_type": "qwen2", "sliding_window": 8}, (None, None, None)),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            (None, 8, 8),
        ),
    ],
)
def test_windows(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read_config({**LLAMA, **changes}).windows == windows


GEMMA3: dict[str, Any] = {
    **LLAMA,
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "sliding_window": 8,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


def test_gemma_3_has_a_window_and_another_rope_in_most_layers() -> None:
    config = read_config(GEMMA3)
    assert config.windows == (8, 8, 8, 8, 8, None, 8)
    ropes = [(rope.kind, rope.theta, rope.factor) for rope in config.ropes if rope is not None]
    assert ropes[0] == ropes[6] == ("default", 1e4, 1.0)
    assert ropes[5] == ("linear", 1e6, 8.0)
    assert (config.num_kv_heads, config.head_dim, config.is_head_tied) == (4, 256, True)
    assert math.isclose(config.attention_scale, 1 / 16)


def test_the_text_model_of_gemma_3_is_read_as_if_it_were_alone() -> None:
    text = {name: value for name, value in GEMMA3.items() if name != "vocab_size"}
    whole = {"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 106]}
    alone = {**GEMMA3, "vocab_size": 262_208, "eos_token_id": [1, 106]}
    assert read_config(whole) == replace(read_config(alone), family="gemma3")


@pytest.mark.parametrize(
    ("changes", "are_turned"),
    [
        ({}, "1110"),
        ({"no_rope_layer_interval": 2}, "1010"),
        ({"no_rope_layers": [0, 1, 1, 0, 1]}, "0110"),
    ],
)
def test_some_layers_of_smollm3_turn_nothing(changes: dict[str, Any], are_turned: str) -> None:
    config = read_config({**LLAMA, "model_type": "smollm3", "num_hidden_layers": 4, **changes})
    assert "".join("01"[rope is not None] for rope in config.ropes) == are_turned
    part = config.part(LayerRange(2, 4))
    assert part.ropes == config.ropes[2:]


def test_what_gpt_oss_leaves_out_has_the_values_it_was_trained_with() -> None:
    config = read_config(GPT_OSS)
    assert config.windows == (128, None, 128)
    [rope, *_] = config.ropes
    assert rope is not None
    assert (rope.kind, rope.theta, rope.factor) == ("yarn", 150_000.0, 32.0)
    assert (rope.original_max_positions, rope.is_truncated) == (4096, False)
    assert config.swiglu == SwiGluConfig(limit=7.0, alpha=1.702)
    assert config.has_qkv_bias
    assert config.has_out_bias
    assert config.has_sinks
    assert config.mixture == MixtureConfig(8, 4, 128, True, frozenset(), has_biases=True)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": None}, (None, None, None)),
        ({"sliding_window": 5}, (5, None, 5)),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, ()),
        ({"layer_types": ["full_attention", "sliding_attention", "x"]}, (None, 128, None)),
    ],
)
def test_windows_of_gpt_oss(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    if windows:
        assert read_config({**GPT_OSS, **changes}).windows == windows
    else:
        assert "one layer type for each of its 3" in faults({**GPT_OSS, **changes})[0]


LONGROPE = {"rope_type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def test_longrope_has_other_frequencies_beyond_the_first_context() -> None:
    phi = {**LLAMA, "model_type": "phi3", "max_position_embeddings": 4096**2}
    [rope, *_] = read_config({**phi, "rope_scaling": LONGROPE}).ropes
    assert rope is not None
    assert math.isclose(rope.magnitude, math.sqrt(2.0))
    short, long = (frequencies(rope, 16, max_seq_len) for max_seq_len in (4096, 4097))
    assert np.allclose(short, 2 * long)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0},
            "no attn_logit_softcapping",
        ),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "bidirectional"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "one layer type for"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": "x"}, "final_logit_softcapping"),
        ({"model_type": "gemma3", "text_config": "x"}, "text_config='x'"),
        ({"model_type": "olmo2", "sliding_window": 8}, "sliding_window=8"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2, 0]}, "no_rope_layers=[1, 2, 0]"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "0 or 1 for each of its 3 layers"),
        ({"model_type": "glm4", "partial_rotary_factor": 0.45}, "an even number of a head's 16"),
        ({"model_type": "glm4", "partial_rotary_factor": 1e12}, "partial_rotary_factor="),
        ({"model_type": "phi3", "rope_scaling": {"type": "linear"}}, "default, longrope, su, yarn"),
        (
            {"model_type": "phi3", "rope_scaling": {**LONGROPE, "long_factor": [1.0]}},
            "long_factor=[1.0] in config.json is no list of 8 numbers",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {**LONGROPE, "short_factor": [math.inf] * 8}},
            "short_factor=inf",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "beta_fast": 0}}, "beta_fast=0"),
        ({**GPT_OSS, "hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({**GPT_OSS, "swiglu_limit": 0}, "swiglu_limit=0"),
        ({**GPT_OSS, "swiglu_alpha": "x"}, "swiglu_alpha='x'"),
        ({**GPT_OSS, "num_local_experts": 3}, "num_experts_per_tok=4"),
    ],
)
def test_what_a_family_does_not_have_is_named(changes: dict[str, Any], named: str) -> None:
    assert any(named in fault for fault in faults({**LLAMA, **changes}))


FAMILIES = (
    "deepseek_v3",
    "ernie4_5_moe",
    "falcon_h1",
    "gemma3_text",
    "glm4",
    "gpt_oss",
    "hunyuan_v1_moe",
    "llama",
    "mistral4",
    "nemotron_h",
    "olmo2",
    "phi3",
    "qwen2",
    "smollm3",
)
KEYS = (
    *LLAMA,
    *("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor", "sliding_window"),
    *("layer_types", "sliding_window_pattern", "no_rope_layers", "no_rope_layer_interval"),
    *("query_pre_attn_scalar", "final_logit_softcapping", "hidden_activation", "head_dim"),
    *("original_max_position_embeddings", "use_sliding_window", "max_position_embeddings"),
    *("swiglu_limit", "swiglu_alpha", "attention_bias", "num_local_experts"),
)
KINDS = ("yarn", "longrope", "llama3", "linear")
JUNK: list[Any] = [
    *("x", -1, 0, 3, 2**30, 1e300, math.nan, 1e-29, True, [], ["x"], [1] * 8, {}, {"x": {}}),
    *({"rope_type": kind, "rope_theta": 0.5, "factor": 1e12} for kind in KINDS),
    {"rope_type": "longrope", "short_factor": [1e-30] * 8, "long_factor": [1e12] * 8},
    {"full_attention": 3, "sliding_attention": {"rope_type": "yarn", "mscale": "x"}},
]


@pytest.mark.parametrize("family", FAMILIES)
def test_junk_is_a_fault_or_harmless(family: str) -> None:
    for key in KEYS:
        for junk in JUNK:
            with suppress(StartupError):
                config = read_config(
                    {**GPT_OSS, "use_sliding_window": True, "model_type": family, key: junk}
                )
                assert len(config.windows) == len(config.ropes) == config.num_layers


@pytest.mark.parametrize(
    ("changes", "dense_layers"),
    [
        ({}, set()),
        ({"mlp_only_layers": [1, 7]}, {1, 7}),
        ({"decoder_sparse_step": 2}, {0, 2}),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, {0, 1, 2}),
    ],
)
def test_layers_without_experts(changes: dict[str, Any], dense_layers: set[int]) -> None:
    config = read_config({**QWEN3_MOE, **changes})
    with_experts = [layer for layer in range(3) if config.mixture_of(layer) is not None]
    assert with_experts == [layer for layer in range(3) if layer not in dense_layers]
    second = config.part(LayerRange(1, 2))
    assert (second.mixture_of(0) is None) == (1 in dense_layers)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9 in config.json is not an integer"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok=0"),
        ({"num_experts": 1025}, "num_experts=1025"),
        ({"num_hidden_layers": 1000, "num_experts": 66}, "from 1 to 65"),
        ({"num_experts": None}, "num_local_experts=None"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size=None"),
        ({"mlp_only_layers": ["0"]}, "mlp_only_layers=['0']"),
        ({"mlp_only_layers": 3}, "mlp_only_layers=3"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
    ],
)
def test_experts_that_cannot_be_are_named(changes: dict[str, Any], named: str) -> None:
    assert named in faults({**QWEN3_MOE, **changes})[0]


def test_what_glm_4_moe_leaves_out_has_its_usual_value() -> None:
    config = read_config(GLM4_MOE)
    assert config.mixture == MixtureConfig(
        8,
        3,
        32,
        is_renormalised=True,
        dense_layers=frozenset({0}),
        scoring="sigmoid",
        has_selection_bias=True,
        groups=ExpertGroups(4, 2, 2),
        shared_ffn_size=32,
    )
    assert (config.rotary_dim, config.has_qk_norm, config.has_qkv_bias) == (8, False, False)
    one_group = read_config({**GLM4_MOE, "n_group": 1, "topk_group": 1}).mixture
    assert one_group is not None
    assert one_group.groups is None


@pytest.mark.parametrize(
    ("changes", "dense_layers"),
    [
        ({"first_k_dense_replace": 0}, set()),
        ({"first_k_dense_replace": 2}, {0, 1}),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, {0, 1}),
        ({"first_k_dense_replace": 0, "moe_layer_freq": 2}, {1}),
    ],
)
def test_layers_before_the_experts(changes: dict[str, Any], dense_layers: set[int]) -> None:
    mixture = read_config({**GLM4_MOE, **changes}).mixture
    assert mixture is not None
    assert mixture.dense_layers == dense_layers


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scoring_func": "softmax"}, "scoring_func='softmax' in config.json is not supported; "),
        ({"scoring_func": "tanh"}, "with scoring_func=sigmoid beside topk_method=noaux_tc."),
        ({"topk_method": "best"}, "topk_method='best' in config.json is not supported; choose a "),
        ({"topk_method": "best"}, "a model with greedy or group_limited_greedy or noaux_tc."),
        ({"n_group": 3}, "n_group=3 in config.json is not supported; choose a model with groups"),
        ({"n_group": 8}, "groups of 2 or more experts, all alike"),
        ({"topk_group": 1}, "as many experts in them as num_experts_per_tok=3"),
        ({"topk_group": 5}, "topk_group=5 in config.json is not an integer from 1 to 4"),
        ({"n_shared_experts": -1}, "n_shared_experts=-1 in config.json is not an integer from 0"),
        ({"first_k_dense_replace": "x"}, "first_k_dense_replace='x'"),
        ({"moe_layer_freq": [0, 1, 1]}, "moe_layer_freq=[0, 1, 1]"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor=0"),
        ({"n_routed_experts": None}, "n_routed_experts=None"),
    ],
)
def test_a_choice_of_experts_that_cannot_be_is_named(changes: dict[str, Any], named: str) -> None:
    assert named in " ".join(faults({**GLM4_MOE, **changes}))


def test_the_deepseeks_differ_only_in_data() -> None:
    v2, v3 = read_config({**DEEPSEEK_V2, "head_dim": 8}), read_config(DEEPSEEK_V3)
    assert (v2.head_dim, v2.rotary_dim, v2.value_dim, v2.num_kv_heads) == (32, 8, 16, 4)
    assert v2.latent == LatentConfig(query_rank=None, kv_rank=64, value_dim=16)
    assert v3.latent == LatentConfig(query_rank=48, kv_rank=64, value_dim=16)
    assert v2.mixture is not None
    assert v3.mixture is not None
    assert (v2.mixture.scoring, v2.mixture.groups) == ("softmax", None)
    assert (v3.mixture.scoring, v3.mixture.groups) == ("sigmoid", ExpertGroups(4, 2, 2))
    assert (v2.mixture.is_renormalised, v3.mixture.is_renormalised) == (False, True)
    limited = read_config({**DEEPSEEK_V2, "topk_method": "group_limited_greedy"}).mixture
    assert limited is not None
    assert limited.groups == ExpertGroups(4, 2, 1)


def test_yarn_of_deepseek_multiplies_scores() -> None:
    yarn = {"type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}
    config = read_config({**DEEPSEEK_V2, "rope_scaling": yarn})
    magnitude = 1.0 + 0.1 * 0.707 * math.log(40.0)
    assert math.isclose(config.attention_scale, 32**-0.5 * magnitude**2)
    [rope, *_] = config.ropes
    assert rope is not None
    assert rope.magnitude == 1.0
    plain = read_config({**DEEPSEEK_V2, "rope_scaling": {**yarn, "mscale_all_dim": 0}})
    assert math.isclose(plain.attention_scale, 32**-0.5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kv_lora_rank": None}, "kv_lora_rank=None in config.json is not an integer from 1"),
        ({"q_lora_rank": 0}, "q_lora_rank=0"),
        ({"v_head_dim": 33}, "v_head_dim=33 in config.json is not an integer from 1 to 32"),
        ({"qk_nope_head_dim": "x"}, "qk_nope_head_dim='x'"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim=7 in config.json is not supported; choose a"),
        ({"rope_interleave": False}, "rope_interleave=False"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"rope_scaling": {"type": "yarn", "mscale_all_dim": "x"}}, "mscale_all_dim='x'"),
    ],
)
def test_latents_that_cannot_be_are_named(changes: dict[str, Any], named: str) -> None:
    assert named in " ".join(faults({**DEEPSEEK_V3, **changes}))
