"""Quantised safetensors serve the numbers that their formats say, and are refused when damaged."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_api.engine.cuda.panels import unpacked
from inference_api.engine.cuda.parameters import load_torch_parameters
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.kernels.build import multiplies_tiles
from inference_api.kernels.library import Kernels
from inference_api.kernels.packing import BITS, FILE_BITS, Bits
from inference_api.loading import checkpoint
from inference_api.loading.config import ModelConfig
from inference_api.loading.files import weight_files
from inference_api.loading.layout import linear_weights
from inference_api.loading.memory import weights_size
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import settle
from inference_api.loading.weights import Packing, load_parameters
from inference_api.settings.model import ModelSettings
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.quantised_models import QUANTISED, make_quantised
from tests.inference_api.loading.test_gguf import logits
from tests.inference_api.parameters import numbers_of, packed_parameters

Make = Callable[[str], tuple[Path, Path]]
Change = Callable[[dict[str, Any], dict[str, Tensor]], None]
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def quantised(tiny_model: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A quantised model, and one with the same numbers in float32, each made once."""

    @cache
    def make(name: str) -> tuple[Path, Path]:
        return make_quantised(tiny_model("llama"), name, tmp_path_factory.mktemp(name))

    return make


@pytest.mark.parametrize("name", QUANTISED)
def test_same_logits_as_the_numbers_in_float32(name: str, quantised: Make) -> None:
    folder, plain = quantised(name)
    options = EngineOptions(device="cpu", max_rows=4, quantization="auto")
    assert check_one(folder, options) == []
    assert torch.equal(logits(folder), logits(plain))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *(("packed-4", 4), ("packed-4", 8), ("packed-4-zeros", 8), ("packed-8", 8)),
        *(("awq", 8), ("awq-whole", 8), ("gptq", 8), ("gptq-v2", 8)),
    ],
)
def test_values_that_fit_are_not_rounded_again(name: str, bits: Bits, quantised: Make) -> None:
    folder, plain = quantised(name)
    packed, numbers = packed_parameters(folder, bits).packed, numbers_of(plain)
    for parameter in linear_weights(checkpoint.load_config(plain)):
        if parameter != "head":
            assert np.array_equal(packed[parameter].unpack(), numbers[parameter])


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *(("fp8-blocks", 8), ("fp8-blocks", 4), ("gptq", 4), ("gptq-order", 8)),
        *(("gptq-odd-groups", 8), ("packed-8-zeros", 8), ("fp8-blocks", 16)),
    ],
)
def test_others_are_packed_as_their_numbers_are(name: str, bits: Bits, quantised: Make) -> None:
    folder, plain = quantised(name)
    packed, again = packed_parameters(folder, bits).packed, packed_parameters(plain, bits).packed
    for parameter, weight in again.items():
        assert np.array_equal(packed[parameter].blocks, weight.blocks)


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-packed"])
def test_nvfp4_stays_as_it_is(name: str, quantised: Make) -> None:
    folder, plain = quantised(name)
    found = checkpoint.describe(str(folder))
    assert found.config is not None
    options = EngineOptions(device="cpu", max_rows=1, quantization="file")
    config = settle(found.config, options, found.tensors).whole
    packing = Packing(Kernels(1), 8)
    packed = load_parameters(weight_files(folder), config, "float32", packing).packed
    numbers = numbers_of(plain)
    for parameter in linear_weights(config):
        if parameter != "head":
            weight = packed[parameter]
            assert weight.bits == (8 if weight.inputs % 64 else FILE_BITS["NVFP4"])
            is_alike = np.allclose(weight.unpack(), numbers[parameter], rtol=3e-7, atol=0)
            assert is_alike or weight.bits == 8


def test_modelopt_may_describe_itself_in_a_file_of_its_own(quantised: Make, tmp_path: Path) -> None:
    folder = quantised("nvfp4")[0]
    copy = Path(copytree(folder, tmp_path / "model"))
    config = json.loads((copy / "config.json").read_text())
    del config["quantization_config"]
    (copy / "config.json").write_text(json.dumps(config))
    described = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    (copy / "hf_quant_config.json").write_text(json.dumps({"quantization": described}))
    assert checkpoint.load_config(copy) == checkpoint.load_config(folder)


def test_scales_of_float32_are_rounded_to_half(quantised: Make) -> None:
    folder, plain = quantised("int-channel")
    packed, numbers = packed_parameters(folder, 8).packed, numbers_of(plain)
    least = 127 * 2**-25  # what a scale below half precision's normal ones can lose
    for parameter in ("layers.0.qkv.weight", "layers.1.down.weight"):
        unpacked = packed[parameter].unpack()
        assert np.allclose(unpacked, numbers[parameter], rtol=2**-11, atol=least)


@pytest.mark.parametrize("family", ["falcon-40b", "glm4", "phi3", "deepseek-v3"])
def test_fused_and_interleaved_rows_are_brought_into_order(
    family: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    folder, plain = make_quantised(tiny_model(family), "packed-8-zeros", tmp_path)
    assert torch.equal(logits(folder), logits(plain))


def test_tensors_of_a_matrix_may_be_in_several_files(quantised: Make, tmp_path: Path) -> None:
    folder, plain = quantised("gptq")
    copy = Path(copytree(folder, tmp_path / "model"))
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    kinds = {name: name.rsplit(".", 1)[1] for name in tensors}
    for kind in set(kinds.values()):
        some = {name: tensors[name] for name in tensors if kinds[name] == kind}
        save_file(some, copy / f"{kind}.safetensors")
    index = {"weight_map": {name: f"{kind}.safetensors" for name, kind in kinds.items()}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(logits(copy), logits(plain))


def spoiled(folder: Path, target: Path, change: Change) -> Path:
    """A copy whose quantization_config and tensors were changed."""
    copy = Path(copytree(folder, target / "model"))
    config = json.loads((copy / "config.json").read_text())
    tensors = load_file(copy / "model.safetensors")
    change(config["quantization_config"], tensors)
    (copy / "config.json").write_text(json.dumps(config))
    save_file(tensors, copy / "model.safetensors")
    return copy


def quantization_of(model: Path, **settings: Any) -> str:
    """Of the weights as they are loaded where settings say nothing but these."""
    asked = EngineOptions.from_settings(ModelSettings(model=str(model), **settings))
    return KernelRunner(model, replace(asked, device="cpu"))._options.quantization


def quantised_files(quantised: Make, folder: Path) -> list[Path]:
    """One of every form that a file can have its weights quantised in."""
    made = [quantised(name)[0] for name in QUANTISED]
    for kind in ("Q8_0", "Q4_0", "MXFP4"):
        made.append(folder / f"{kind}.gguf")
        make_gguf(quantised("awq")[1], made[-1], kind)
    return made


def test_who_names_no_form_gets_8_bits_of_what_is_quantised_and_the_rest_as_it_is(
    quantised: Make, tmp_path: Path
) -> None:
    for file in quantised_files(quantised, tmp_path):
        is_small = "nvfp4" in str(file) or file.stem in ("Q4_0", "MXFP4")
        is_kept = is_small and not multiplies_tiles()
        assert quantization_of(file) == ("file" if is_kept else "int8"), file
    _, plain = quantised("awq")
    make_gguf(plain, tmp_path / "F16.gguf", "F16")
    for file in (plain, tmp_path / "F16.gguf"):
        assert quantization_of(file) == "none"


def on_cuda(file: Path) -> tuple[ModelConfig, str]:
    """The forms of weights there, and QUANTIZATION, where settings say nothing."""
    options = EngineOptions(device="cuda", max_rows=1, quantization="auto")
    found = checkpoint.describe(str(file))
    assert found.config is not None
    whole, settled, _ = settle(found.config, options, found.tensors)
    return whole, settled.quantization


def test_auto_on_cuda_packs_what_is_quantised_as_the_kernels_do(
    quantised: Make, tmp_path: Path
) -> None:
    """In 4 bits what these hold, with as many bytes as are planned."""
    of_four_bits = {quantised(name)[0] for name in ("packed-4", "gptq-symmetric")} | {
        tmp_path / "Q4_0.gguf"
    }
    for file in quantised_files(quantised, tmp_path):
        config, quantization = on_cuda(file)
        assert quantization == ("file" if file in of_four_bits else "int8"), file
        packing = Packing(Kernels(1), 8)
        loaded = load_torch_parameters(weight_files(file), config, CPU, torch.float32, packing)
        packed = {bits: packed_parameters(file, bits).packed for bits in BITS.values()}
        for name, matrix in loaded.panels.items():
            assert name == "head" or matrix.bits == (4 if file in of_four_bits else 8)
            assert np.array_equal(unpacked(matrix), packed[matrix.bits][name].unpack()), name
        taken = sum(each.blocks.nbytes for each in loaded.panels.values())
        taken += sum(each.nbytes for each in loaded.tensors.values())
        assert taken == weights_size(config, "float32", 8, by_torch=True)
        assert file.stem != "Q4_0" or taken <= file.stat().st_size
    assert on_cuda(quantised("awq")[1])[1] == "none"


def test_what_cannot_be_packed_is_refused_on_cuda_if_asked_for(
    quantised: Make, tmp_path: Path
) -> None:
    """By quantised files it is not: they are served in the precision of the rest."""
    options = EngineOptions(device="cuda", max_rows=1, quantization="int8")
    config = checkpoint.load_config(quantised("awq")[1])
    assert settle(config, options, {}).faults == []
    uneven = replace(config, ffn_size=config.ffn_size + 8)
    [fault] = settle(uneven, options, {}).faults
    assert "needs weights with a multiple of 32 columns; these differ: " in fault
    assert fault.endswith("set QUANTIZATION=none.")
    auto = replace(options, quantization="auto")
    assert settle(uneven, auto, {}).options.quantization == "none"


def test_int4_is_warned_of_where_it_rounds_and_nowhere_else(
    quantised: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = quantised("awq")[1]
    files = quantised_files(quantised, tmp_path)
    for file in (plain, *files):
        caplog.clear()
        quantization_of(file, quantization="int4")
        packed, numbers = packed_parameters(file, 4).packed, numbers_of(file)
        is_rounded = any(
            not np.array_equal(packed[name].unpack(), numbers[name])
            for name in packed
            if name.startswith("layers.")
        )
        assert bool(caplog.messages) == is_rounded, file
        assert all("QUANTIZATION=int4 rounds" in message for message in caplog.messages)


def test_gguf_is_made_of_what_is_not_quantised(quantised: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is quantised; choose the checkpoint that it was made of"):
        make_gguf(quantised("gptq")[0], tmp_path / "model.gguf", "F32")


QUERIES = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("name", "values", "fault"),
    [
        ("gptq", {"quant_method": "bitsandbytes"}, "quant_method='bitsandbytes' in config.json"),
        ("gptq", {"quant_method": ["gptq"]}, "one of awq, compressed-tensors, fp8, gptq"),
        (
            "gptq",
            {"bits": 3},
            r"\(gptq\): bits=3 in config.json is not supported; choose .* 4 or 8",
        ),
        ("gptq", {"bits": True}, "bits=True"),
        ("gptq", {"group_size": 0}, "group_size=0"),
        ("gptq", {"group_size": 10**30}, "group_size=1000000"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        ("gptq", {"dynamic": {"-:lm_head": {}}}, "dynamic="),
        ("awq", {"version": "gemv"}, r"\(awq\): version='gemv'"),
        ("awq", {"zero_point": False}, "zero_point=False"),
        ("fp8-blocks", {"weight_block_size": [128]}, "weight_block_size"),
        ("fp8-blocks", {"weight_block_size": 128}, "weight_block_size=128"),
        ("fp8-blocks", {"fmt": "e5m2"}, "fmt='e5m2'"),
        ("packed-4", {"format": "mixed-precision"}, "format='mixed-precision'"),
        ("packed-4", {"format": "nvfp4-pack-quantized"}, "type='int'"),
        ("nvfp4", {"quant_algo": "FP8"}, r"\(modelopt\): quant_algo='FP8'"),
        ("packed-4", {"format": "float-quantized"}, "type='int'"),
        ("packed-4", {"config_groups": {}}, "config_groups={}"),
        ("packed-4", {"config_groups": {"a": {"weights": None}}}, "weights=None"),
        ("packed-4", {"config_groups": [1]}, "config_groups"),
        ("packed-4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    ],
)
def test_what_is_not_understood_is_refused(
    name: str, values: dict[str, Any], fault: str, quantised: Make, tmp_path: Path
) -> None:
    copy = spoiled(quantised(name)[0], tmp_path, lambda config, _: config.update(values))
    with pytest.raises(StartupError, match=fault):
        checkpoint.load_config(copy)


def cut(name: str) -> Change:
    """Takes the last row of a tensor away."""

    def change(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name][:-1].contiguous()

    return change


def without(name: str) -> Change:
    def change(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return change


def retyped(name: str, dtype: torch.dtype) -> Change:
    return lambda _, tensors: tensors.update({name: tensors[name].to(dtype)})


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("gptq", without(f"{QUERIES}.qzeros"), f"lack {QUERIES}.qzeros"),
        ("gptq-order", without(f"{QUERIES}.g_idx"), f"lack {QUERIES}.g_idx"),
        ("gptq", cut(f"{QUERIES}.qweight"), r"qweight is \[7, 64\] instead of \[8, 64\]"),
        ("gptq", retyped(f"{QUERIES}.qweight", torch.int64), "qweight is I64 instead of I32"),
        ("awq", cut(f"{QUERIES}.scales"), r"scales is \[1, 64\] instead of \[2, 64\]"),
        ("fp8-blocks", without(f"{QUERIES}.weight_scale_inv"), f"lack {QUERIES}.weight_scale_inv"),
        ("fp8-blocks", retyped(f"{QUERIES}.weight", torch.bfloat16), "BF16 instead of F8_E4M3"),
        ("packed-4-zeros", without(f"{QUERIES}.weight_zero_point"), "weight_zero_point"),
        ("packed-4", without(f"{QUERIES}.weight_packed"), f"lack {QUERIES}.weight_packed"),
        ("nvfp4", without(f"{QUERIES}.weight_scale_2"), f"lack {QUERIES}.weight_scale_2"),
        ("nvfp4", retyped(f"{QUERIES}.weight_scale", torch.float32), "F32 instead of F8_E4M3"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    name: str, change: Change, fault: str, quantised: Make, tmp_path: Path
) -> None:
    copy = spoiled(quantised(name)[0], tmp_path, change)
    faults = check_one(copy, EngineOptions(device="cpu", max_rows=1))
    assert faults
    with pytest.raises(StartupError, match=fault):
        raise StartupError(faults)
    with pytest.raises(StartupError, match=fault):
        numbers_of(copy)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize(
    ("name", "tensor", "value", "fault"),
    [
        ("gptq", "g_idx", 2, "groups that are not among its 2"),
        ("gptq", "g_idx", -1, "groups that are not among its 2"),
        ("gptq", "scales", torch.inf, "scales that are not finite"),
        ("fp8-blocks", "weight", torch.nan, "not finite"),
        ("nvfp4", "weight_scale_2", torch.nan, "scales that are not finite"),
        ("nvfp4-packed", "weight_global_scale", 0.0, "scales that are not finite"),
    ],
)
def test_numbers_that_are_none_are_refused(
    name: str,
    tensor: str,
    value: float,
    fault: str,
    bits: Bits | None,
    quantised: Make,
    tmp_path: Path,
) -> None:
    def change(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        flat = tensors[f"{QUERIES}.{tensor}"].view(-1)
        flat[0] = torch.tensor(value).to(flat.dtype)

    copy = spoiled(quantised(name)[0], tmp_path, change)
    with pytest.raises(StartupError, match=f"{QUERIES}.weight cannot be loaded: .*{fault}"):
        numbers_of(copy) if bits is None else packed_parameters(copy, bits)
