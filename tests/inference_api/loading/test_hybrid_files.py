"""Files of Qwen3-Next, Qwen3.5 and Granite 4 in the forms that they come in are the same model."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.loading.families.read import read_config
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, place_own_pages
from tests.inference_api.conftest import TinyModel
from tests.inference_api.engine.quantised_models import QUANTISED, describe, split
from tests.inference_api.engine.tiny_models import CONTEXT, make_model, write_tokenizer
from tests.inference_api.loading.gguf_hybrids import write_hybrid_gguf

PROMPT = [5, 17, 250, 9, 33, 4, 8, 21, 199]
MATRIX_ROWS = 32  # of those that are quantised, at least
DRAW = Draw(SamplingParams(temperature=0.0), (0,), ())
Tiny = Callable[[str], TinyModel]


def logits(model: Path, quantization: str = "none") -> Floats:
    """Of every token of PROMPT."""
    options = EngineOptions(
        dtype="float32", max_rows=1, max_seq_len=CONTEXT, quantization=quantization
    )
    runner = KernelRunner(model, options)
    runner.load()
    place_own_pages(runner)
    return runner.decoder.forward([RowStep(0, 0, PROMPT, [DRAW] * len(PROMPT))]).logits.copy()


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-Next with experts in every layer."""
    folder = tmp_path_factory.mktemp("sparse")
    make_model("qwen3-next", folder, decoder_sparse_step=1)
    return folder


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe", "granite4-one-group", "granite4-moe"])
def test_gguf_file_gives_the_same_logits(name: str, tiny_model: Tiny, tmp_path: Path) -> None:
    if name == "granite4-one-group":  # as all published ones
        folder = tmp_path / name
        make_model("granite4", folder, mamba_n_groups=1)
    else:
        folder, _ = tiny_model(name)
    file = write_hybrid_gguf(folder, tmp_path / "model.gguf")
    expected = logits(folder)
    np.testing.assert_allclose(logits(file), expected, atol=1e-4, rtol=0)
    assert np.linalg.norm(logits(file, "int8") - expected) < 0.1 * np.linalg.norm(expected)


@pytest.mark.parametrize("is_old", [False, True])
def test_projections_of_gguf_files_are_split_or_not(
    is_old: bool, sparse: Path, tmp_path: Path
) -> None:
    file = write_hybrid_gguf(sparse, tmp_path / "model.gguf", is_old)
    np.testing.assert_allclose(logits(file), logits(sparse), atol=1e-4, rtol=0)


@pytest.mark.parametrize("form", ["fp8-blocks", "awq", "gptq-order"])
def test_quantised_files_are_their_numbers(form: str, sparse: Path, tmp_path: Path) -> None:
    description, draw = QUANTISED[form]
    tensors = load_torch(sparse / "model.safetensors")
    small = {name: each for name, each in tensors.items() if each.shape[0] < MATRIX_ROWS}
    stored, numbers = split({n: t for n, t in tensors.items() if n not in small}, draw)
    for name, each in (("stored", stored), ("numbers", numbers)):
        copytree(sparse, tmp_path / name)
        save_torch(small | each, tmp_path / name / "model.safetensors")
    describe(tmp_path / "stored", description)
    assert np.array_equal(logits(tmp_path / "stored"), logits(tmp_path / "numbers"))


def composite(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The same model as the text part of one that sees too, with tensors changed."""
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    tensors["model.visual.patch_embed.weight"] = np.ones((4, 4), np.float32)
    tensors["mtp.fc.weight"] = np.ones((4, 8), np.float32)
    change(tensors)
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    whole = {
        "model_type": config["model_type"].removesuffix("_text"),
        "text_config": config,
        "tie_word_embeddings": config["tie_word_embeddings"],
    }
    (target / "config.json").write_text(json.dumps(whole))
    write_tokenizer(target)
    return target


def fused(tensors: dict[str, Any]) -> None:
    """Experts of a layer in two tensors."""
    for layer in range(4):
        prefix = f"model.language_model.layers.{layer}.mlp.experts"
        kinds: dict[str, list[Floats]] = {"gate_up_proj": [], "down_proj": []}
        for expert in range(7):
            gate, up, down = (
                tensors.pop(f"{prefix}.{expert}.{kind}_proj.weight")
                for kind in ("gate", "up", "down")
            )
            kinds["gate_up_proj"].append(np.concatenate([gate, up]))
            kinds["down_proj"].append(down)
        for kind, single in kinds.items():
            tensors[f"{prefix}.{kind}"] = np.stack(single)


@pytest.mark.parametrize(
    ("name", "change"), [("qwen3.5", lambda tensors: None), ("qwen3.5-moe", fused)]
)
def test_text_part_of_a_model_that_sees_is_the_same(
    name: str, change: Callable[[dict[str, Any]], None], tiny_model: Tiny, tmp_path: Path
) -> None:
    folder, _ = tiny_model(name)
    assert np.array_equal(logits(composite(folder, tmp_path / "whole", change)), logits(folder))


QWEN3_5_9B = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
}
QWEN3_NEXT_80B = {
    "model_type": "qwen3_next",
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_experts": 512,
}


@pytest.mark.parametrize(
    ("raw", "matrices", "inputs"),
    [(QWEN3_5_9B, 50_331_648, 2_359_296), (QWEN3_NEXT_80B, 75_497_472, 3_538_944)],
)
def test_a_row_remembers_as_much_as_published_shapes_say(
    raw: dict[str, Any], matrices: int, inputs: int
) -> None:
    config = read_config(raw)
    assert config.state_floats * 4 == matrices + inputs
    assert config.rotary_dim == 64
    assert config.recurrent is not None
    attending = {*range(config.num_layers)} - config.recurrent.layers
    assert attending == {*range(3, config.num_layers, 4)}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"attn_output_gate": False}, "attn_output_gate=False .* choose a model with .*=True"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type='sigmoid'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads=24 .* multiple of 16 key heads"),
        ({"linear_key_head_dim": 72}, "linear_key_head_dim=72 .* multiple of 16 up to 256"),
        ({"linear_value_head_dim": 512}, "linear_value_head_dim=512 .* multiple of 32 up to 256"),
        ({"layer_types": ["full_attention"] * 32}, "layer_types=.* and some of both"),
        ({"layer_types": ["linear_attention"] * 31}, "layer_types=.* each of its 32 layers"),
        ({"model_type": "qwen3_5_moe_text", "mlp_only_layers": [1]}, "mlp_only_layers"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(StartupError, match=fault):
        read_config(QWEN3_5_9B | changes)
