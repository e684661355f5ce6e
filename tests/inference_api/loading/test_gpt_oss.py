"""Experts of gpt-oss as its files have them: stacked, gates and ups by turns, and MXFP4."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_api.errors import StartupError
from inference_api.kernels.packing import Bits
from inference_api.loading import checkpoint, hub
from inference_api.loading.files import read_entries
from inference_api.loading.layout import EMBEDDING, StoredTensor, is_exact, linear_weights
from inference_api.loading.options import EngineOptions
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny, make_runner
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.quantised_models import make_mxfp4
from tests.inference_api.engine.steps import decode, prefill
from tests.inference_api.engine.tiny_models import transformers_model
from tests.inference_api.loading.test_gguf import logits
from tests.inference_api.parameters import numbers_of, packed_parameters

Tensors = dict[str, Tensor]
WEIGHTS = "model.safetensors"
EXPERTS = "model.layers.0.mlp.experts"
OPTIONS = EngineOptions(device="cpu", max_rows=1)


def changed_config(folder: Path, **values: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | values))


@pytest.fixture(scope="module")
def models(tiny_model: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_mxfp4(tiny_model("gpt-oss"), tmp_path_factory.mktemp("mxfp4"))


def test_mxfp4_is_the_numbers_that_transformers_makes_of_it(models: tuple[Path, Path]) -> None:
    folder, plain = models
    assert check_one(folder, OPTIONS) == []
    found, expected = (numbers_of(each) for each in models)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert torch.equal(logits(folder), logits(plain))


def test_mxfp4_is_not_rounded_again_in_int8(models: tuple[Path, Path], tmp_path: Path) -> None:
    """Neither from safetensors nor from a GGUF file of the same numbers."""
    folder, plain = models
    file = tmp_path / "model.gguf"
    make_gguf(plain, file, "MXFP4")
    expected = numbers_of(plain)
    for name in linear_weights(checkpoint.load_config(plain)):
        if name.endswith((".up.weight", ".down.weight")):
            for model in (folder, file):
                unpacked = packed_parameters(model, 8).packed[name].unpack()
                assert np.array_equal(unpacked, expected[name]), (name, model)


@pytest.mark.parametrize("bits", [16, 4])
def test_biases_and_sinks_are_whole_in_every_form(bits: Bits, models: tuple[Path, Path]) -> None:
    folder, plain = models
    found, expected = packed_parameters(folder, bits), numbers_of(plain)
    vectors = [name for name, tensor in expected.items() if tensor.ndim == 1]
    assert {"layers.1.sinks", "layers.0.router.bias", "layers.1.up.bias"} <= {*vectors}
    assert all(np.array_equal(found.tensors[name], expected[name]) for name in vectors)
    assert all(
        weight.bits == (32 if is_exact(name) else bits)
        for name, weight in found.packed.items()
        if name != EMBEDDING  # which has the file's bits
    )


def test_gates_are_clamped_as_by_transformers(
    engine: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    folder = Path(copytree(tiny_model("gpt-oss"), tmp_path / "model"))
    changed_config(folder, swiglu_limit=0.7, swiglu_alpha=1.1)
    prompt = [5, 17, 250, 9]
    with torch.inference_mode():
        model = transformers.GptOssForCausalLM.from_pretrained(folder)
        expected = model(torch.tensor([prompt])).logits[0, -1]
        free = transformers_model("gpt-oss")(torch.tensor([prompt])).logits[0, -1]
        decoder = make_runner(folder, engine, "float32", 2).decoder
        prefill(decoder, 1, 0, prompt[:-1])
        [found] = decode(decoder, prompt[-1:], [1], [3])
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)
    assert (expected - free).abs().max() > 0.1


def test_tensors_of_an_expert_may_be_in_several_files(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    plain = models[1]
    for model in models:
        copy = Path(copytree(model, tmp_path / model.name))
        tensors = load_file(copy / WEIGHTS)
        (copy / WEIGHTS).unlink()
        files = {name: f"{name.rsplit('_', 1)[-1]}.safetensors"[-30:] for name in tensors}
        for file in {*files.values()}:
            save_file({name: tensors[name] for name in tensors if files[name] == file}, copy / file)
        index = {"weight_map": files}
        (copy / "model.safetensors.index.json").write_text(json.dumps(index))
        assert torch.equal(logits(copy), logits(plain))


def spoiled(folder: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    copy = Path(copytree(folder, target / "model"))
    tensors = load_file(copy / WEIGHTS)
    change(tensors)
    save_file(tensors, copy / WEIGHTS)
    return copy


def cut(name: str, dimension: int) -> Callable[[Tensors], object]:
    """Takes the last of a dimension away."""

    def change(tensors: Tensors) -> None:
        size = tensors[name].shape[dimension]
        tensors[name] = tensors[name].narrow(dimension, 0, size - 1).contiguous()

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda tensors: tensors.pop(f"{EXPERTS}.down_proj_scales"), "0.down_proj.scales"),
        (lambda tensors: tensors.pop(f"{EXPERTS}.gate_up_proj_bias"), "0.gate_proj.bias"),
        (lambda tensors: tensors.pop("model.layers.1.self_attn.sinks"), "self_attn.sinks"),
        (cut(f"{EXPERTS}.gate_up_proj_blocks", 0), "lack model.layers.0.mlp.experts.4.gate"),
        (cut(f"{EXPERTS}.gate_up_proj_blocks", 1), "lack model.layers.0.mlp.experts.0.gate"),
        (cut(f"{EXPERTS}.gate_up_proj_blocks", 3), r"blocks is \[96, 2, 15\] instead of"),
        (cut(f"{EXPERTS}.down_proj_scales", 2), r"scales is \[64, 2\] instead of \[64, 3\]"),
        (
            lambda tensors: tensors.update(
                {f"{EXPERTS}.down_proj_scales": tensors[f"{EXPERTS}.down_proj_scales"].float()}
            ),
            "scales is F32 instead of U8",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    change: Callable[[Tensors], object], fault: str, models: tuple[Path, Path], tmp_path: Path
) -> None:
    copy = spoiled(models[0], tmp_path, change)
    with pytest.raises(StartupError, match=fault):
        raise StartupError(check_one(copy, OPTIONS))


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_a_scale_that_is_no_number_is_refused(
    bits: Bits | None, models: tuple[Path, Path], tmp_path: Path
) -> None:
    def change(tensors: Tensors) -> None:
        tensors[f"{EXPERTS}.gate_up_proj_scales"][3, 1, 0] = 255

    copy = spoiled(models[0], tmp_path, change)
    with pytest.raises(StartupError, match=r"3\.up_proj\.weight cannot be loaded: .*not finite"):
        numbers_of(copy) if bits is None else packed_parameters(copy, bits)


def test_headers_on_the_hub_are_understood(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in models:
        copy = Path(copytree(model, tmp_path / model.name))
        _, entries = read_entries(copy / WEIGHTS)
        headers = {
            name: StoredTensor(tuple(entry["shape"]), entry["dtype"])
            for name, entry in entries.items()
        }
        (copy / WEIGHTS).unlink()
        monkeypatch.setattr(hub, "fetch", lambda *_, copy=copy, **__: copy)
        monkeypatch.setattr(hub, "stored_tensors", lambda _, headers=headers: headers)
        assert check_one("owner/name", OPTIONS) == []


def test_what_gguf_has_no_words_for_is_not_written(tiny_model: Tiny, tmp_path: Path) -> None:
    for change in ({"swiglu_limit": 6.0}, {"layer_types": ["full_attention"] * 2}):
        copy = Path(copytree(tiny_model("gpt-oss"), tmp_path / next(iter(change))))
        changed_config(copy, **change)
        with pytest.raises(ValueError, match=r"in GGUF gpt-oss has swiglu_limit=7\.0"):
            make_gguf(copy, tmp_path / "model.gguf", "F32")
