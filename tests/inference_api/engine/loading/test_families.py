import math
from typing import Any

import pytest

from inference_api.engine.loading.families import read_config
from inference_api.errors import StartupError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
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
    assert config.rope.theta == 10_000.0
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
    rope = read_config({**LLAMA, **spelling}).rope
    assert (rope.kind, rope.theta, rope.factor) == ("linear", 5e5, 2.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type='yarn'"),
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
    assert len(fault) < 300


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


def test_kv_cache_bytes() -> None:
    config = read_config({**LLAMA, "num_key_value_heads": 2})
    # layers x rows x (keys, values) x kv heads x tokens in multiples of 16 x head_dim x bytes
    assert config.kv_cache_bytes(5, 100, 16 * 2) == 3 * 5 * 2 * 2 * 112 * 16 * 2
