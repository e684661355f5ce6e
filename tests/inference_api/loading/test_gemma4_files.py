"""Gemma 4's files, in the forms that they come in, are the same model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from inference_api.errors import StartupError
from inference_api.loading.checkpoint import load_config
from inference_api.loading.families.read import read_config
from inference_api.loading.gguf.tokenizer import tokenizer_json
from inference_api.loading.layout import EMBEDDINGS, parameter_forms
from inference_api.loading.page_groups import bytes_of_pages, page_groups
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.tiny_models import GEMMA4S, write_tokenizer
from tests.inference_api.loading.gguf_gemma4 import global_head_dim, write_gemma4_gguf
from tests.inference_api.loading.test_hybrid_files import logits
from tests.inference_api.sentence_pieces import METADATA

Q8_0 = GGMLQuantizationType.Q8_0
BASE: dict[str, Any] = {"model_type": "gemma4_text", "vocab_size": 300}
DENSE = {**BASE, "hidden_size_per_layer_input": 0}
OF_31B = {
    **DENSE,
    "hidden_size": 5376,
    "intermediate_size": 21_504,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
}
OF_E2B = {
    **BASE,
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6}},
}


@pytest.mark.parametrize("name", GEMMA4S)
def test_gguf_file_gives_the_same_logits(name: str, tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model(name)
    file = write_gemma4_gguf(folder, tmp_path / "model.gguf")
    for quantization in ("none", "int8"):
        expected = logits(folder, quantization)
        np.testing.assert_allclose(logits(file, quantization), expected, atol=1e-4, rtol=0)


def test_experts_of_gguf_files_may_have_two_stacks(tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model("gemma4-moe")
    file = write_gemma4_gguf(folder, tmp_path / "model.gguf", is_split=True)
    np.testing.assert_allclose(logits(file), logits(folder), atol=1e-4, rtol=0)


def test_quantised_experts_of_both_kinds_are_the_same(tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model("gemma4-moe")
    fused, split = (
        logits(write_gemma4_gguf(folder, tmp_path / f"{each}.gguf", each, Q8_0))
        for each in (False, True)
    )
    assert np.array_equal(fused, split)


def test_embeddings_of_gguf_files_stay_as_they_are(tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model("gemma4-inputs")
    file = write_gemma4_gguf(folder, tmp_path / "model.gguf", kind=Q8_0)
    config = load_config(file)
    forms = parameter_forms(config, dtype_bytes=4, bits=32)
    assert [forms[name].bits for name in EMBEDDINGS] == [8, 8]
    expected = logits(folder)
    assert np.linalg.norm(logits(file) - expected) < 0.05 * np.linalg.norm(expected)


def test_tokenizers_of_gguf_files_have_merges_of_their_own() -> None:
    pieces = {**METADATA, "tokenizer.ggml.add_space_prefix": False}
    by_scores = tokenizer_json(pieces)
    merges = [" ".join(each) for each in by_scores["model"]["merges"]]
    own = pieces | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.scores": None}
    assert tokenizer_json({**own, "tokenizer.ggml.merges": merges}) == by_scores
    fewer = tokenizer_json({**own, "tokenizer.ggml.merges": merges[:3]})
    assert fewer["model"]["merges"] == by_scores["model"]["merges"][:3]
    with pytest.raises(StartupError, match=r"merges is no list of merges"):
        tokenizer_json(own)


@pytest.mark.parametrize("name", ["gemma4-one-projection", "gemma4-unified"])
def test_text_part_of_a_model_that_sees_is_the_same(
    name: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    """Published files say how heads differ otherwise than those that transformers writes."""
    folder = tiny_model(name)
    config = json.loads((folder / "config.json").read_text())
    config["global_head_dim"] = global_head_dim(config)
    [own, *_] = config.pop("per_layer_config").values()
    config["num_global_key_value_heads"] = own.get("num_key_value_heads")
    tensors = load_file(folder / "model.safetensors")
    seen = {each.replace("model.", "model.language_model.", 1): tensors[each] for each in tensors}
    seen["model.embed_vision.embedding_projection.weight"] = np.ones((4, 4), np.float32)
    save_file(seen, tmp_path / "model.safetensors")
    whole = {"model_type": config["model_type"].removesuffix("_text"), "text_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    write_tokenizer(tmp_path)
    assert np.array_equal(logits(tmp_path), logits(folder))


@pytest.mark.parametrize(
    ("raw", "expected", "page_bytes"),
    [
        (OF_31B, {1024: 819_200, None: 81_920}, 81_920),
        (OF_E2B, {512: 12_288, None: 6_144}, 6_144),
    ],
)
def test_a_row_remembers_as_much_as_published_shapes_say(
    raw: dict[str, Any], expected: dict[int | None, int], page_bytes: int
) -> None:
    """In bytes of a token in half precision."""
    config = read_config(raw)
    remembered = dict.fromkeys(config.windows, 0)
    for window, shape in zip(config.windows, config.layer_shapes, strict=True):
        if shape.kv_source is None:
            remembered[window] += 2 * 2 * shape.num_kv_heads * shape.head_dim
    assert remembered == expected
    groups = page_groups(config, 32_768)
    assert bytes_of_pages(config, groups, dtype="float16") == 32 * page_bytes
    rope = config.ropes[config.windows.index(None)]
    assert rope is not None
    assert (rope.kind, rope.theta, rope.num_turned) == ("proportional", 1e6, 64)


def test_layers_that_see_everything_may_make_values_of_what_keys_are() -> None:
    config = read_config(OF_31B)
    local, whole = config.shape_of(0), config.shape_of(5)
    assert (local.num_kv_heads, local.head_dim, local.has_values) == (16, 256, True)
    assert (whole.num_kv_heads, whole.head_dim, whole.has_values) == (4, 512, False)


def test_what_is_left_out_is_as_in_transformers() -> None:
    config = read_config({**DENSE, "layer_types": None})
    assert config.windows == ((512,) * 5 + (None,)) * 5
    assert [shape.head_dim for shape in config.layer_shapes[4:6]] == [256, 512]
    assert {shape.num_kv_heads for shape in config.layer_shapes} == {4}
    forced = read_config({**DENSE, "layer_types": ["sliding_attention"] * 30})
    assert forced.windows == (512,) * 29 + (None,)
    assert config.is_head_tied
    unified = read_config({**BASE, "model_type": "gemma4_unified_text"})
    assert unified.windows[0] == 1024


def test_last_layers_see_what_the_last_of_their_kind_remembers() -> None:
    config = read_config({**DENSE, "num_kv_shared_layers": 20, "use_double_wide_mlp": True})
    sources = [shape.kv_source for shape in config.layer_shapes]
    assert sources == [None] * 10 + [5 if layer % 6 == 5 else 9 for layer in range(10, 30)]
    sizes = [shape.ffn_size for shape in config.layer_shapes]
    assert sizes == [9216] * 10 + [2 * 9216] * 20


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
        ({"num_kv_shared_layers": 30}, "num_kv_shared_layers=30 .* from 0 to 29"),
        ({"num_kv_shared_layers": 27}, "num_kv_shared_layers=27 .* a layer of each type"),
        ({"per_layer_config": {"05": {"sliding_window": 7}}}, "layers that differ in their heads"),
        ({"per_layer_config": {"05": 512}}, "an object or nothing there"),
        (
            {"num_kv_shared_layers": 12, "per_layer_config": {"29": {"head_dim": 512}}},
            "heads alike where layers share them",
        ),
        ({"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5}, "top_k_experts=5"),
        ({"num_attention_heads": 6}, "6 heads of 256 over 4 key-value heads"),
        ({"global_head_dim": 31}, "8 heads of 31 over 4"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn2"}}}, "rope_type='yarn2'"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(StartupError, match=fault):
        read_config(DENSE | changes)
