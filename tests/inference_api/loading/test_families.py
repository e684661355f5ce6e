import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference_api.engine.rope import frequencies
from inference_api.loading.config import (
    LayerRange,
    MixtureConfig,
    SwiGluConfig,
)
from inference_api.loading.families.read import read_config
from tests.inference_api.loading.family_configs import (
    FALCON,
    GPT_OSS,
    LLAMA,
    faults,
)


def test_what_old_files_leave_out_has_its_usual_value() -> None:
    config = read_config({**LLAMA, "num_key_value_heads": None})
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
        ({"max_position_embeddings": 2**30 + 1}, f"an integer from 16 to {2**30}"),
        ({"max_position_embeddings": 1}, "max_position_embeddings=1 in config.json is not an"),
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
    assert len(fault) < 1000  # it has the names of all families


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
        ({"model_type": "glm4", "partial_rotary_factor": 0.45}, "an even number of a head's 128"),
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
