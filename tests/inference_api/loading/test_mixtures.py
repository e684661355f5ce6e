"""Experts and latent attention, as config.json describes them."""

import math
from typing import Any

import pytest

from inference_api.loading.config import (
    ExpertGroups,
    LatentConfig,
    LayerRange,
    MixtureConfig,
)
from inference_api.loading.families.read import read_config
from tests.inference_api.loading.family_configs import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GLM4_MOE,
    QWEN3_MOE,
    faults,
)


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
        ({"moe_intermediate_size": 0}, "moe_intermediate_size=0"),
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
