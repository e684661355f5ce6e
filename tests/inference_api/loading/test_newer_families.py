"""Newer families without recurrent layers, as their published files say them."""

from typing import Any

import pytest

from inference_api.loading.families.read import read_config
from inference_api.loading.gguf.config import raw_config
from tests.inference_api.loading.family_configs import DEEPSEEK_V3, LLAMA, faults

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
EXAONE4 = {**LLAMA, "model_type": "exaone4", "num_hidden_layers": 8}
FLASH: dict[str, Any] = {
    **DEEPSEEK_V3,
    "model_type": "glm4_moe_lite",
    "n_group": 1,
    "topk_group": 1,
}


def windows(raw: dict[str, Any]) -> str:
    config = read_config(raw)
    letters = {(True, True): "L", (False, False): "G", (False, True): "g", (True, False): "l"}
    kinds = zip(config.windows, config.ropes, strict=True)
    return "".join(letters[window is not None, rope is not None] for window, rope in kinds)


def test_olmo3_has_yarn_in_the_layers_that_see_everything() -> None:
    olmo3 = {**LLAMA, "model_type": "olmo3", "num_hidden_layers": 8, "rope_theta": 5e5}
    config = read_config({**olmo3, "rope_scaling": YARN})
    assert config.windows == (4096, 4096, 4096, None) * 2
    assert [rope and rope.kind for rope in config.ropes[:4]] == ["default"] * 3 + ["yarn"]
    assert {rope and rope.theta for rope in config.ropes} == {5e5}
    assert config.is_qk_norm_whole


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({}, "LLLGLLLG"),
        ({"sliding_window_pattern": "LLG"}, "LLGLLGLL"),
        ({"layer_types": ["sliding_attention"] * 7 + ["full_attention"]}, "LLLLLLLG"),
    ],
)
def test_exaone4_turns_only_what_has_a_window(pattern: dict[str, Any], expected: str) -> None:
    assert windows({**EXAONE4, "sliding_window": 64, **pattern}) == expected
    assert windows({**EXAONE4, "sliding_window": None, **pattern}) == "g" * 8


def test_flash_chooses_experts_as_deepseek_v3_does_without_saying_so() -> None:
    mixture = read_config({**FLASH, "mlp_layer_types": ["dense", "sparse", "sparse"]}).mixture
    assert mixture is not None
    assert (mixture.scoring, mixture.has_selection_bias, mixture.groups) == ("sigmoid", True, None)
    assert (mixture.dense_layers, mixture.scale) == (frozenset({0}), 1.8)
    published = read_config({**FLASH, "first_k_dense_replace": 2}).mixture
    assert published is not None
    assert published.dense_layers == frozenset({0, 1})
    [fault] = faults({**FLASH, "mlp_layer_types": ["dense"]})
    assert "mlp_layer_types" in fault


@pytest.mark.parametrize(
    ("layers", "vocab_size", "method"),
    [(47, 154_880, "noaux_tc"), (48, 154_880, "noaux_tc"), (47, 102_400, "greedy")],
)
def test_files_of_flash_need_not_say_how_experts_are_chosen(
    layers: int, vocab_size: int, method: str
) -> None:
    keys = {
        "block_count": layers,
        "embedding_length": 2048,
        "attention.head_count": 20,
        "attention.key_length": 256,
        "rope.dimension_count": 64,
        "expert_count": 64,
    }
    metadata = {f"deepseek2.{key}": value for key, value in keys.items()}
    raw = raw_config("deepseek2", metadata, {"token_embd.weight": (vocab_size, 2048)}, {})
    assert raw["topk_method"] == method


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_queries_of_ministral3_grow_with_their_position(key: str) -> None:
    raw = {**LLAMA, "model_type": "ministral3", key: {**YARN, "llama_4_scaling_beta": 0.1}}
    assert {rope and rope.query_growth for rope in read_config(raw).ropes} == {0.1}
    seeing = {"model_type": "mistral3", "text_config": raw}
    assert read_config(seeing).ropes == read_config(raw).ropes
    of_old = {**LLAMA, "model_type": "mistral"}
    of_new = {**DEEPSEEK_V3, "model_type": "mistral4", "rope_parameters": raw[key]}
    newer = read_config({"model_type": "mistral3", "text_config": of_new})
    assert (newer.ropes[0], newer.family) == (read_config(raw).ropes[0], "mistral3")
    assert read_config({"model_type": "mistral3", "text_config": of_old}).ropes[0] is not None
    [fault] = faults({"model_type": "mistral3", "text_config": {**LLAMA, "model_type": "phi3"}})
    assert "text_config.model_type" in fault


ERNIE: dict[str, Any] = {**LLAMA, "model_type": "ernie4_5_moe", "num_hidden_layers": 8}
HUNYUAN: dict[str, Any] = {
    **LLAMA,
    "model_type": "hunyuan_v1_moe",
    "num_experts": 8,
    "moe_topk": [2] * LLAMA["num_hidden_layers"],
}


@pytest.mark.parametrize(
    ("changes", "dense_layers"),
    [
        ({}, {0}),
        ({"moe_layer_start_index": 3, "moe_layer_end_index": 5}, {0, 1, 2, 6, 7}),
        ({"moe_layer_interval": 2}, {0, 2, 4, 6}),
    ],
)
def test_layers_of_ernie_without_experts(changes: dict[str, Any], dense_layers: set[int]) -> None:
    mixture = read_config(ERNIE | changes).mixture
    assert mixture is not None
    assert mixture.dense_layers == dense_layers
    assert mixture.shared_ffn_size == 2 * 1536
    assert (mixture.scoring, mixture.has_selection_bias) == ("softmax", True)


def test_alpha_of_hunyuan_changes_theta() -> None:
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    rope = read_config({**HUNYUAN, "head_dim": 128, "rope_scaling": scaling}).ropes[0]
    assert rope is not None
    assert rope.kind == "default"
    assert rope.theta == pytest.approx(1e4 * 1000 ** (128 / 126))


@pytest.mark.parametrize(
    ("raw", "changes", "fault"),
    [
        (ERNIE, {"use_bias": True}, "use_bias=True in config.json is not supported"),
        (HUNYUAN, {"moe_topk": [2, 1]}, "the same in all layers"),
        (HUNYUAN, {"num_shared_expert": [2, 2]}, "num_shared_expert=1"),
        (HUNYUAN, {"moe_intermediate_size": 3}, "moe_intermediate_size="),
        (HUNYUAN, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "an alpha beside"),
    ],
)
def test_what_these_do_not_have_is_named(
    raw: dict[str, Any], changes: dict[str, Any], fault: str
) -> None:
    assert any(fault in each for each in faults(raw | changes))
