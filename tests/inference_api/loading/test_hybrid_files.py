"""Files of models with recurrent layers in the forms that they come in are the same model."""

import json
import math
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
from inference_api.loading.config import PAGE_TOKENS
from inference_api.loading.families.read import read_config
from inference_api.loading.options import EngineOptions
from inference_api.loading.page_groups import bytes_of_pages, page_groups
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, place_own_pages
from lab.models.gguf_file import make_gguf
from lab.models.gguf_hybrids import write_hybrid_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.quantised_models import QUANTISED, describe, split
from tests.inference_api.engine.tiny_models import CONTEXT, make_model, write_tokenizer

PROMPT = [5, 17, 250, 9, 33, 4, 8, 21, 199]
MATRIX_ROWS = 32  # of those that are quantised, at least
DRAW = Draw(SamplingParams(temperature=0.0), (0,), ())


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


@pytest.mark.parametrize(
    "name",
    [
        *("qwen3.5", "qwen3.5-moe", "granite4", "granite4-moe", "falcon-h1", "falcon-h1-norm"),
        *("nemotron", "nemotron-dense", "nemotron-super", "kimi-linear"),
    ],
)
def test_gguf_file_gives_the_same_logits(name: str, tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model(name)
    file = tmp_path / "model.gguf"
    make_gguf(folder, file, "F32")
    expected = logits(folder)
    np.testing.assert_allclose(logits(file), expected, atol=1e-4, rtol=0)
    assert np.linalg.norm(logits(file, "int8") - expected) < 0.1 * np.linalg.norm(expected)


@pytest.mark.parametrize("is_old", [False, True])
def test_projections_of_gguf_files_are_split_or_not(
    is_old: bool, sparse: Path, tmp_path: Path
) -> None:
    file = write_hybrid_gguf(sparse, tmp_path / "model.gguf", is_old=is_old)
    np.testing.assert_allclose(logits(file), logits(sparse), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "form"),
    [("", "fp8-blocks"), ("", "awq"), ("", "gptq-order"), ("falcon-h1", "fp8-blocks")],
)
def test_quantised_files_are_their_numbers(
    name: str, form: str, sparse: Path, tiny_model: Tiny, tmp_path: Path
) -> None:
    description, draw = QUANTISED[form]
    folder = tiny_model(name) if name else sparse
    tensors = load_torch(folder / "model.safetensors")
    small = {name: each for name, each in tensors.items() if each.shape[0] < MATRIX_ROWS}
    stored, numbers = split({n: t for n, t in tensors.items() if n not in small}, draw)
    for name, each in (("stored", stored), ("numbers", numbers)):
        copytree(folder, tmp_path / name)
        save_torch(small | each, tmp_path / name / "model.safetensors")
    describe(tmp_path / "stored", description)
    found, expected = (logits(tmp_path / each) for each in ("stored", "numbers"))
    # Multipliers of Falcon-H1 are multiplied with scales or with numbers.
    np.testing.assert_allclose(found, expected, atol=1e-5 if name else 0, rtol=0)


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
    folder = tiny_model(name)
    assert np.array_equal(logits(composite(folder, tmp_path / "whole", change)), logits(folder))


def test_a_dense_layer_of_kimi_linear_has_two_names(tiny_model: Tiny, tmp_path: Path) -> None:
    """That of published files, and that which transformers saves."""
    folder = tiny_model("kimi-linear")
    tensors = load_file(folder / "model.safetensors")
    layer = "model.layers.0"
    renamed = {
        name.replace(f"{layer}.block_sparse_moe.", f"{layer}.mlp."): tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    copytree(folder, tmp_path / "published")
    save_file(renamed, tmp_path / "published/model.safetensors")
    assert np.array_equal(logits(tmp_path / "published"), logits(folder))


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


NEMOTRON_9B = {
    "model_type": "nemotron_h",
    "vocab_size": 131_072,
    "hidden_size": 4480,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "num_attention_heads": 40,
    "intermediate_size": 15_680,
    "mamba_head_dim": 80,
    "time_step_limit": [0.0, math.inf],
}
EXPERTS = {"hybrid_override_pattern": "ME*-"}
FALCON_1_5B = {
    "model_type": "falcon_h1",
    "vocab_size": 65_536,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "mamba_d_ssm": 3072,
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_d_state": 256,
    "rope_theta": 100_000_000_000.0,
}

OLMO_HYBRID_7B = {
    "model_type": "olmo_hybrid",
    "vocab_size": 100_352,
    "hidden_size": 3840,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 30,
}
KIMI_48B = {
    "model_type": "kimi_linear",
    "vocab_size": 163_840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "head_dim": 72,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "model_max_length": 1_048_576,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
}


@pytest.mark.parametrize(
    ("raw", "matrices", "inputs", "page_bytes"),
    [
        (QWEN3_5_9B, 50_331_648, 2_359_296, 32_768),
        (QWEN3_NEXT_80B, 75_497_472, 3_538_944, 24_576),
        (FALCON_1_5B, 75_497_472, 1_032_192, 49_152),
        (OLMO_HYBRID_7B, 53_084_160, 3_317_760, 122_880),
        (KIMI_48B, 41_943_040, 2_949_120, 8064),
    ],
)
def test_a_row_remembers_as_much_as_published_shapes_say(
    raw: dict[str, Any], matrices: int, inputs: int, page_bytes: int
) -> None:
    """In half precision a token takes so many bytes of pages."""
    config = read_config(raw)
    assert config.state_floats * 4 == matrices + inputs
    [group] = page_groups(config, config.max_positions)
    assert bytes_of_pages(config, [group], "float16") == page_bytes * PAGE_TOKENS


def test_a_layer_of_nemotron_is_of_one_kind() -> None:
    config = read_config(NEMOTRON_9B)
    kinds = ""
    for layer in range(config.num_layers):
        is_one = [config.recurrent_of(layer), config.attends(layer), config.has_mlp(layer)]
        [kind] = (letter for letter, is_it in zip("M*-", is_one, strict=True) if is_it)
        kinds += kind
    assert kinds == NEMOTRON_9B["hybrid_override_pattern"]
    listed = {"M": "mamba", "*": "attention", "-": "mlp"}
    as_words = [listed[kind] for kind in kinds]
    other = {**NEMOTRON_9B, "hybrid_override_pattern": None, "layers_block_type": as_words}
    assert read_config(other) == config


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"attn_output_gate": False}, "attn_output_gate=False .* choose a model with .*=true"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type='sigmoid'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads=24 .* multiple of 16 key heads"),
        ({"linear_key_head_dim": 72}, "linear_key_head_dim=72 .* multiple of 16 up to 256"),
        ({"linear_value_head_dim": 512}, "linear_value_head_dim=512 .* multiple of 16 up to 256"),
        ({"layer_types": ["full_attention"] * 32}, "layer_types=.* and some of both"),
        ({"layer_types": ["linear_attention"] * 31}, "layer_types=.* each of its 32 layers"),
        ({"model_type": "qwen3_5_moe_text", "mlp_only_layers": [1]}, "mlp_only_layers"),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(StartupError, match=fault):
        read_config(QWEN3_5_9B | changes)


@pytest.mark.parametrize(
    ("raw", "changes", "fault"),
    [
        (OLMO_HYBRID_7B, {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        (OLMO_HYBRID_7B, {"linear_key_head_dim": 72}, "linear_key_head_dim=72"),
        (OLMO_HYBRID_7B, {"layer_types": ["linear_attention"] * 32}, "layer_types=.* some of both"),
        (KIMI_48B, {"mla_use_nope": False}, "mla_use_nope=False .* with mla_use_nope=true"),
        (KIMI_48B, {"moe_router_activation_func": "softmax"}, "scoring_func='softmax'"),
        (KIMI_48B, {"linear_attn_config": {"head_dim": 72}}, "linear_key_head_dim=72"),
        (KIMI_48B, {"linear_attn_config": {"full_attn_layers": []}}, "layer_types=.* some of both"),
    ],
)
def test_what_newer_delta_rules_do_not_have_is_refused(
    raw: dict[str, Any], changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(StartupError, match=fault):
        read_config(raw | changes)


@pytest.mark.parametrize(
    ("raw", "changes", "fault"),
    [
        (FALCON_1_5B, {"mamba_rms_norm": True}, "mamba_norm_before_gate=True .* with false there"),
        (FALCON_1_5B, {"projectors_bias": True}, "projectors_bias=True .* projectors_bias=false"),
        (FALCON_1_5B, {"ssm_multipliers": [1.0]}, "ssm_multipliers=.* no list of 5 numbers"),
        (FALCON_1_5B, {"mamba_n_heads": 40}, "mamba_n_heads=40 .* divide 3072"),
        (FALCON_1_5B, {"time_step_limit": [0.0, 0.1]}, "time_step_limit=.* steps of any length"),
        (NEMOTRON_9B, {"hybrid_override_pattern": "M-M-"}, "pattern='M-M-' .* of M"),
        (NEMOTRON_9B, {"hybrid_override_pattern": "M*X"}, "pattern='M.X' .* of M"),
        (NEMOTRON_9B, {"hybrid_override_pattern": "M*" * 513}, "pattern=.* up to 1024 of M"),
        (NEMOTRON_9B, EXPERTS | {"moe_latent_size": 4481}, "moe_latent_size=4481 .* 0 to 4480"),
        (NEMOTRON_9B, EXPERTS | {"mlp_bias": True}, "mlp_bias=True .* mlp_bias=false"),
        (NEMOTRON_9B, {"mlp_hidden_act": "xielu"}, "hidden_act='xielu' .* relu2"),
    ],
)
def test_what_mamba_does_not_have_is_refused(
    raw: dict[str, Any], changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(StartupError, match=fault):
        read_config(raw | changes)
