"""Gemma 3n's files, in the forms that they come in, are the same model."""

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import MODEL_ARCH, GGUFWriter
from safetensors.numpy import load_file, save_file

from inference_api.errors import StartupError
from inference_api.loading.checkpoint import load_config
from inference_api.loading.families.read import read_config
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.tiny_models import GEMMA3NS, write_tokenizer
from tests.inference_api.loading.test_hybrid_files import logits

BASE: dict[str, Any] = {"model_type": "gemma3n_text", "vocab_size": 300}
OF_E2B = {
    **BASE,
    "num_hidden_layers": 30,
    "intermediate_size": [8192] * 30,
    "num_kv_shared_layers": 10,
    "rope_scaling": None,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}


def write_gguf(folder: Path, target: Path) -> Path:
    """Writes what llama.cpp's converter is documented to make of the tensors: projections of
    streams are stacked, and for shares of gates there are the cutoffs, minus infinity for none."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    others = range(config["altup_num_inputs"] - 1)
    for stack in ("model.altup_projections", "model.altup_unembed_projections"):
        each = [tensors.pop(f"{stack}.{number}.weight") for number in others]
        tensors[f"{stack}.weight"] = np.stack(each)
    writer = GGUFWriter(target, "gemma3n")
    writer.add_tokenizer_model("none")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind[0] == "s" for kind in config["layer_types"]])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_rope_freq_base(1e6)
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    shares = config["activation_sparsity_pattern"]
    cutoffs = [NormalDist().inv_cdf(share) if share else -math.inf for share in shares]
    writer.add_activation_sparsity_scale(cutoffs)
    names = gguf.get_tensor_name_map(MODEL_ARCH.GEMMA3N, config["num_hidden_layers"])
    for name, tensor in tensors.items():
        end = ".weight" if name.endswith("_scale") else ""
        theirs = names.get_name(f"{name}{end}", try_suffixes=(".weight",))
        assert theirs is not None, name
        writer.add_tensor(str(theirs), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize("name", GEMMA3NS)
def test_gguf_file_gives_the_same_logits(name: str, tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model(name)
    file = write_gguf(folder, tmp_path / "model.gguf")
    assert load_config(file).layer_input_tokens == load_config(folder).layer_input_tokens
    for quantization in ("none", "int8"):
        expected = logits(folder, quantization)
        np.testing.assert_allclose(logits(file, quantization), expected, atol=1e-4, rtol=0)


def test_text_part_of_a_model_that_sees_and_hears_is_the_same(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    folder = tiny_model("gemma3n")
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    whole = {each.replace("model.", "model.language_model.", 1): tensors[each] for each in tensors}
    for other in (
        "vision_tower.timm_model.conv_stem.conv",
        "audio_tower.conformer.0.norm",
        "embed_vision.embedding_projection",
        "embed_audio.embedding",
    ):
        whole[f"model.{other}.weight"] = np.ones((4, 4), np.float32)
    save_file(whole, tmp_path / "model.safetensors")
    both = {"model_type": "gemma3n", "text_config": config, "vision_config": {}, "audio_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(both))
    write_tokenizer(tmp_path)
    assert np.array_equal(logits(tmp_path), logits(folder))


def test_published_shapes_are_what_is_said_of_them() -> None:
    config = read_config(OF_E2B)
    sources = [shape.kv_source for shape in config.layer_shapes]
    assert sources == [None] * 20 + [18, 18, 18, 18, 19] * 2
    assert config.windows == ((512,) * 4 + (None,)) * 6
    assert {rope and rope.theta for rope in config.ropes} == {1e4, 1e6}
    cutoffs = [shape.gate_cutoff for shape in config.layer_shapes]
    assert cutoffs == [pytest.approx(1.6448536)] * 10 + [None] * 20
    assert {shape.ffn_size for shape in config.layer_shapes} == {8192}
    of_e4b = read_config(BASE)
    assert (of_e4b.num_layers, of_e4b.num_streams, of_e4b.laurel_rank) == (35, 4, 64)
    assert [shape.ffn_size for shape in of_e4b.layer_shapes] == [16_384] * 35
    assert of_e4b.layer_input_tokens == 262_144


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"altup_active_idx": 1}, "altup_active_idx=1 .* altup_active_idx=0"),
        ({"altup_correct_scale": False}, "altup_correct_scale=False .* altup_correct_scale=true"),
        ({"altup_num_inputs": 9}, "altup_num_inputs=9 .* from 2 to 8"),
        ({"laurel_rank": 0}, "laurel_rank=0"),
        ({"activation_sparsity_pattern": [0.95]}, "one for each of its 30 layers"),
        ({"activation_sparsity_pattern": 1.0}, "shares from 0 to 1"),
        ({"activation_sparsity_pattern": ["most"] * 30}, "shares from 0 to 1"),
        ({"intermediate_size": []}, "one for each of its 30 layers"),
        ({"intermediate_size": [8192] * 29 + [0]}, "intermediate_size=0"),
        ({"num_kv_shared_layers": 27}, "a layer of each type"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(StartupError, match=fault):
        read_config(OF_E2B | changes)
