"""Under QUANTIZATION=file or auto matrices stay as a GGUF file has them, where the kernels can."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels
from inference_api.kernels.packing import FILE_BITS
from inference_api.loading import checkpoint, settling
from inference_api.loading.config import LayerRange, ModelConfig
from inference_api.loading.files import read_headers
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.layout import linear_weights
from inference_api.loading.memory import weights_size
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.folder import PackedFolder
from inference_api.loading.settling import settle
from inference_api.loading.stacks import in_stack
from inference_api.loading.weights import Packing, Parameters, load_parameters
from inference_api.runner import RowStep, place_own_pages
from lab.models.gguf_file import make_gguf
from lab.models.random_model import SHAPES
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.loading.gguf_copies import rewritten, small_gguf
from tests.inference_api.loading.test_gguf import stored_numbers
from tests.inference_api.parameters import numbers_of
from tests.inference_api.superblocks import drawn, with_superblocks

OfKind = Callable[[str], Path]
PROMPT = [5, 17, 250, 9, 33, 4]
SHAPE = replace(SHAPES["tiny"], hidden=256, ffn=256)
OPTIONS = EngineOptions(device="cpu", max_rows=1, max_seq_len=64, quantization="file")
MATRICES = ("_q", "_k", "_v", "_output", "_gate", "_up", "_down", "token_embd", "output")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gguf(tmp_path_factory.mktemp("plain"), SHAPE)


@pytest.fixture(scope="module")
def all_of(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> OfKind:
    """A model whose matrices are all of one kind, each drawn once."""

    def make(kind: str) -> Path:
        file = tmp_path_factory.mktemp(kind) / "model.gguf"
        return with_superblocks(plain, file, dict.fromkeys(MATRICES, kind))

    return cache(make)


def config_of(file: Path, quantization: str = "file") -> ModelConfig:
    config = checkpoint.load_config(file)
    tensors = read_headers([file], config.tensor_names)
    return settle(config, replace(OPTIONS, quantization=quantization), tensors).whole


def parameters(file: Path, quantization: str = "file") -> Parameters:
    config = config_of(file, quantization)
    return load_parameters([file], config, "float32", Packing(Kernels(1), 8))


def loaded(
    file: Path, quantization: str = "file", packed: PackedFolder | None = None
) -> KernelDecoder:
    runner = KernelRunner(file, replace(OPTIONS, quantization=quantization), packed=packed)
    runner.load()
    place_own_pages(runner)
    return runner.decoder


def logits(*given: Any) -> Tensor:
    """Of the token after PROMPT, by what is `loaded`."""
    return said(loaded(*given))


def said(decoder: KernelDecoder) -> Tensor:
    return torch.from_numpy(decoder.forward([prompt()]).logits.copy())


def prompt() -> RowStep:
    return RowStep(0, 0, PROMPT, (ANY_DRAW,))


@pytest.mark.parametrize("kind", FILE_BITS)
def test_matrices_stay_as_the_file_has_them_and_answers_are_nearly_those_of_floats(
    kind: str, all_of: OfKind
) -> None:
    kept, floats = loaded(all_of(kind)), loaded(all_of(kind), "none")
    for name in linear_weights(config_of(all_of(kind))):
        assert kept._packed[name].bits == FILE_BITS[kind]
        assert np.array_equal(kept._packed[name].unpack(), floats._packed[name].unpack())
    meant = said(floats)
    assert (said(kept) - meant).norm() < 0.05 * meant.norm()


def with_factors(source: Path, target: Path, factor: NDArray[np.float32]) -> Path:
    """A copy in which every matrix of NVFP4 has a factor, `factor` times its number, and another
    for activations."""

    def add(tensors: dict[str, Any]) -> None:
        matrices = [name for name, (_, kind) in tensors.items() if kind.name == "NVFP4"]
        for number, name in enumerate(matrices):
            stem, kind = name.removesuffix("weight"), GGMLQuantizationType.F32
            tensors[f"{stem}scale"] = (factor * np.float32(number), kind)
            tensors[f"{stem}input_scale"] = (np.ones(1, np.float32), kind)

    return rewritten(source, target, tensors=add)


def test_matrices_have_their_factors(all_of: OfKind, tmp_path: Path) -> None:
    bare = all_of("NVFP4")
    file = with_factors(bare, tmp_path / "model.gguf", np.array([0.37], np.float32))
    model = read_gguf(file)
    packed, floats = parameters(file).packed, numbers_of(file)
    for name, parts in linear_weights(config_of(file)).items():
        names = [model.tensors[part.name].name for part in parts]
        each = [
            stored_numbers(file, [part]) * model.factors[its][0]
            for part, its in zip(parts, names, strict=True)
        ]
        assert packed[name].bits == FILE_BITS["NVFP4"]
        assert np.array_equal(packed[name].unpack(), torch.cat(each))
        assert name not in floats or torch.equal(floats[name], torch.cat(each))


def test_experts_have_factors_of_their_own(tiny_model: Tiny, tmp_path: Path) -> None:
    make_gguf(tiny_model("qwen3-moe"), tmp_path / "plain.gguf", "F32")

    def draw(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if "_up_exps." in name or "_gate_exps." in name]:
            count, rows, inputs = tensors[name][0].shape
            data = drawn("NVFP4", count * rows, inputs).reshape(count, rows, -1)
            tensors[name] = (data, GGMLQuantizationType.NVFP4)
            factors = np.arange(count, dtype=np.float32) / 8
            tensors[name.replace("weight", "scale")] = (factors, GGMLQuantizationType.F32)

    file = rewritten(tmp_path / "plain.gguf", tmp_path / "model.gguf", tensors=draw)
    packed, weights = parameters(file).packed, linear_weights(config_of(file))
    for name in [name for name in weights if name.endswith(".up.weight")]:
        singles = [(part, in_stack(part.name)) for part in weights[name]]
        each = [stored_numbers(file, [part]) * of.number / 8 for part, of in singles if of]
        assert packed[name].bits == FILE_BITS["NVFP4"]
        assert np.array_equal(packed[name].unpack(), torch.cat(each))


@pytest.mark.parametrize("factor", [[np.nan], [1.0, 2.0]])
def test_factors_that_are_none_are_refused(
    factor: list[float], all_of: OfKind, tmp_path: Path
) -> None:
    bare = all_of("NVFP4")
    file = with_factors(bare, tmp_path / "model.gguf", np.array(factor, np.float32))
    with pytest.raises(StartupError, match=r"attn_q.scale is not 1 finite F32"):
        read_gguf(file)


def test_weights_take_no_more_memory_than_their_file(all_of: OfKind) -> None:
    for kind in FILE_BITS:
        file = all_of(kind)
        assert weights_size(config_of(file), "float32", 8) <= file.stat().st_size


def test_memory_is_counted_as_it_is_taken(all_of: OfKind) -> None:
    file = all_of("Q4_K")
    runner = KernelRunner(file, OPTIONS)
    described = checkpoint.describe(str(file))
    assert described.config is not None
    planned = settle(described.config, OPTIONS, described.tensors).footprint()
    taken = sum(each.blocks.nbytes for each in parameters(file).packed.values())
    assert taken <= planned.weights_bytes == runner.footprint.weights_bytes < 1.01 * taken


def test_packed_files_hold_them(all_of: OfKind, tmp_path: Path) -> None:
    file = all_of("Q4_K")
    packed = PackedFolder(tmp_path / "packed")
    whole = logits(file)
    assert torch.equal(logits(file, "file", packed), whole)
    assert torch.equal(logits(file, "file", packed), whole)  # mapped this time
    assert not torch.equal(logits(file, "int8", packed), whole)


def test_ranks_share_them(all_of: OfKind) -> None:
    file = all_of("Q4_K")
    ranks = [
        KernelRunner(file, OPTIONS.with_layers(layers))
        for layers in (LayerRange(0, 1), LayerRange(1, 2))
    ]
    for rank in ranks:
        rank.load()
        place_own_pages(rank)
    first, second = (rank.decoder for rank in ranks)
    assert isinstance(first, KernelDecoder)
    assert isinstance(second, KernelDecoder)
    assert ranks[0].agreement == ranks[1].agreement
    after = second.layers([prompt()], first.layers([prompt()]))
    assert torch.equal(torch.from_numpy(first.head([prompt()], after).logits), logits(file))


def test_int8_rounds_them_when_asked(all_of: OfKind) -> None:
    file = all_of("Q4_K")
    packed = parameters(file, "int8").packed
    assert {packed[name].bits for name in linear_weights(config_of(file))} == {8}
    assert KernelRunner(file, replace(OPTIONS, quantization="int8")).facts.quantization == "int8"
    assert KernelRunner(file, OPTIONS).facts.quantization == "file"


def test_a_parameter_of_unlike_parts_is_int8_but_for_values(plain: Path, tmp_path: Path) -> None:
    kinds = {"_q": "Q4_K", "_k": "Q4_K", "_gate": "Q4_K", "_down": "Q4_K"}  # others stay Q8_0
    file = with_superblocks(plain, tmp_path / "model.gguf", kinds)
    packed = parameters(file).packed
    names = ("qkv", "values", "out", "up", "down")
    bits = {name: packed[f"layers.0.{name}.weight"].bits for name in names}
    q4_k = FILE_BITS["Q4_K"]
    assert bits == {"qkv": q4_k, "values": 8, "out": 8, "up": 8, "down": q4_k}
    assert KernelRunner(plain, OPTIONS).facts.quantization == "int8"


def test_values_of_another_form_are_multiplied_with_the_others(plain: Path, tmp_path: Path) -> None:
    kinds = {"_q": "Q5_0", "_k": "Q5_0", "_v": "Q6_K"}
    file = with_superblocks(plain, tmp_path / "model.gguf", kinds)
    meant = logits(file, "none")
    assert (logits(file) - meant).norm() < 0.05 * meant.norm()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_int4_spares_head_and_values_that_are_more_in_the_file(
    kind: str, plain: Path, tmp_path: Path
) -> None:
    make_gguf(plain.with_name("model"), tmp_path / "model.gguf", kind)
    config = config_of(tmp_path / "model.gguf", "int4")
    packing = Packing(Kernels(1), 4)
    packed = load_parameters([tmp_path / "model.gguf"], config, "float32", packing).packed
    bits = {name.removeprefix("layers.0."): weight.bits for name, weight in packed.items()}
    assert {bits[f"{name}.weight"] for name in ("qkv", "out", "up", "down")} == {4}
    assert bits["head"] == (8 if kind == "Q8_0" else 4)
    assert bits.get("values.weight") == (8 if kind == "Q8_0" else None)


@pytest.mark.parametrize("has_tiles", [False, True])
def test_auto_keeps_them_unless_the_processor_multiplies_tiles(
    has_tiles: bool, all_of: OfKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "multiplies_tiles", lambda: has_tiles)
    file = all_of("Q4_K")
    found = KernelRunner(file, replace(OPTIONS, quantization="auto")).facts.quantization
    assert found == ("int8" if has_tiles else "file")
