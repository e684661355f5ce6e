"""GGUF files serve the same numbers and texts as the safetensors they were made of."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.engine.rope import frequencies
from inference_api.kernels.library import Kernels, PackedWeight, UnusableWeight
from inference_api.kernels.packing import Bits
from inference_api.loading import checkpoint
from inference_api.loading.config import RopeConfig
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.gguf import TYPES as GGUF_TYPES
from inference_api.loading.gguf.blocks import GgufTensor
from inference_api.loading.gguf.config import llama3_rope
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.gguf.names import row_order
from inference_api.loading.layout import is_exact, linear_weights, weight_plan
from inference_api.loading.memory import weights_size
from inference_api.loading.options import EngineOptions
from inference_api.runner import place_own_pages
from inference_api.text.tokens import load_tokenizer
from lab.models.gguf_file import TYPES, make_gguf
from lab.models.random_model import SHAPES, make_random_model
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.steps import decode, prefill
from tests.inference_api.engine.tiny_models import CONTEXT
from tests.inference_api.loading.gguf_copies import small_gguf
from tests.inference_api.parameters import numbers_of, packed_parameters

EMBEDDED = Path("models/hearth-tiny")
FAMILIES = (
    "llama",
    "llama-llama3-rope",
    "llama-linear-rope",
    "llama-yarn-rope",
    "llama-tied",
    "llama-biases",
    "qwen2",
    "qwen3",
    "granite",
    "mixtral",
    "qwen3-moe",
    "gpt-oss",
    "gemma3-capped",
    "glm4",
    "glm4-moe",
    "glm4-moe-one-group",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3-one-group",
    "olmo2",
    "olmo3",
    "exaone4",
    "ministral3",
    "seed-oss",
    "ernie4.5",
    "ernie4.5-moe",
    "mistral4",
    "hunyuan",
    "hunyuan-moe",
    "glm4-moe-lite",
    "lfm2",
    "lfm2-narrowed",
    "lfm2-moe",
    "phi3",
    "phi3-long-rope",
    "smollm3",
    "falcon-7b",
    "falcon-40b",
    "falcon-11b",
)
FLOATS = {GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")}
STORED_TYPES = {GGMLQuantizationType[name] for name in GGUF_TYPES}
QUANTISED_TYPES = sorted(STORED_TYPES - FLOATS)
EXPERTS = replace(SHAPES["tiny"], ffn=32, num_experts=32, experts_per_token=2)  # whole panels
PROMPT = [5, 17, 250, 9, 33, 4]


@pytest.fixture(scope="session")
def tied(tiny_model: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A GGUF file of a type, whose head is its embedding."""
    folder = tmp_path_factory.mktemp("tied")

    def make(type_name: str) -> Path:
        file = folder / f"{type_name}.gguf"
        if not file.exists():
            make_gguf(tiny_model("llama-tied"), file, type_name)
        return file

    return make


def logits(model: Path, quantization: str = "none") -> Tensor:
    """Of the token after PROMPT."""
    options = EngineOptions(
        device="cpu", max_rows=1, max_seq_len=CONTEXT, quantization=quantization
    )
    runner = KernelRunner(model, options)
    runner.load()
    place_own_pages(runner)
    with torch.inference_mode():
        prefill(runner.decoder, 0, 0, PROMPT[:-1])
        return decode(runner.decoder, PROMPT[-1:], [0], [len(PROMPT) - 1])


def stored_numbers(file: Path, parts_of_it: Sequence[SourceTensor]) -> Tensor:
    """What the package itself makes of tensors of ours, in our order of rows."""
    model = read_gguf(file)
    parts = []
    for part in parts_of_it:
        tensor = model.tensors[part.name]
        numbers = gguf.quants.dequantize(tensor.read(file), tensor.kind)
        order = row_order(model.architecture, part, model.config)
        if order:
            heads = numbers.reshape(-1, len(order), *numbers.shape[1:])
            numbers = heads[:, order].reshape(numbers.shape)
        parts.append(torch.from_numpy(numbers.copy()))
    return torch.cat(parts)


@pytest.mark.parametrize("name", FAMILIES)
def test_float32_file_gives_the_same_logits(name: str, tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model(name)
    file = tmp_path / "model.gguf"
    make_gguf(folder, file, "F32")
    assert torch.equal(logits(file), logits(folder))


@pytest.mark.parametrize("name", ["llama-wide-heads", "mistral-window", "gemma3"])
def test_what_gguf_has_no_words_for_is_not_written(
    name: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match=r"in GGUF .* has no (sliding windows, and silu|query_pre_attn_scalar)"
    ):
        make_gguf(tiny_model(name), tmp_path / "model.gguf", "F32")
    assert list(tmp_path.iterdir()) == []


def test_experts_that_gguf_has_no_words_for_are_not_written(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="all layers of qwen3moe have experts"):
        make_gguf(tiny_model("qwen3-moe-dense"), tmp_path / "model.gguf", "F32")


def test_magnitudes_that_gguf_has_no_words_for_are_not_written(
    tiny_model: Tiny, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="in GGUF mscale is mscale_all_dim"):
        make_gguf(tiny_model("deepseek-v3"), tmp_path / "model.gguf", "F32")


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_experts_are_not_rounded_again(
    bits: Bits, tiny_model: Tiny, tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    make_gguf(tiny_model("qwen3-moe"), file, {8: "Q8_0", 4: "Q4_0"}[bits])
    packed = packed_parameters(file, bits).packed
    for name, parts in linear_weights(checkpoint.load_config(file)).items():
        assert np.array_equal(packed[name].unpack(), stored_numbers(file, parts))
        assert packed[name].bits == (32 if is_exact(name) else bits)


@pytest.mark.parametrize("type_name", TYPES)
def test_parameters_are_the_numbers_in_the_file(
    type_name: str, tied: Callable[[str], Path]
) -> None:
    file = tied(type_name)
    loaded = numbers_of(file)
    plan = weight_plan(checkpoint.load_config(file))
    for name, parts in plan.items():
        assert torch.equal(loaded[name], stored_numbers(file, parts))


@pytest.mark.parametrize(
    ("type_name", "bits"), [("Q8_0", 8), ("Q4_0", 4), ("Q4_0", 8)], ids=lambda v: str(v)
)
def test_quantised_weights_are_not_rounded_again(
    type_name: str, bits: Bits, tied: Callable[[str], Path]
) -> None:
    file = tied(type_name)
    packed = packed_parameters(file, bits).packed
    for name, parts in linear_weights(checkpoint.load_config(file)).items():
        assert np.array_equal(packed[name].unpack(), stored_numbers(file, parts))


@pytest.mark.parametrize(
    ("type_name", "bits", "embedding_bits"),
    [("Q8_0", 8, 8), ("Q8_0", 32, 8), ("Q4_0", 8, 4), ("Q4_0", 4, 4), ("F16", 8, 32)],
    ids=lambda v: str(v),
)
def test_embedding_has_the_numbers_of_the_file_in_as_few_bits(
    type_name: str, bits: Bits, embedding_bits: Bits, tied: Callable[[str], Path]
) -> None:
    file = tied(type_name)
    packed = packed_parameters(file, bits).packed
    assert packed["embedding"].bits == embedding_bits
    stored = stored_numbers(file, weight_plan(checkpoint.load_config(file))["embedding"])
    assert np.array_equal(packed["embedding"].unpack(), stored)
    is_shared = packed["embedding"].blocks is packed["head"].blocks
    assert is_shared == (bits == embedding_bits)  # they are tied


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_embedding_in_few_bits_has_the_logits_of_its_numbers_as_floats(
    quantization: str, tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    make_gguf(tiny_model("granite"), file, "Q8_0")  # it has an embedding multiplier
    in_few_bits = logits(file, quantization)
    whole = replace(checkpoint.load_config(file), embedding_bits={})
    monkeypatch.setattr(checkpoint, "load_config", lambda folder: whole)
    assert torch.equal(logits(file, quantization), in_few_bits)


@pytest.mark.parametrize(("type_name", "bits"), [("Q8_0", 8), ("Q4_0", 4)])
def test_weights_take_no_more_memory_than_their_file(
    type_name: str, bits: Bits, tmp_path: Path
) -> None:
    for name, shape in (("experts", EXPERTS), ("dense", SHAPES["tiny"])):
        make_random_model(shape, tmp_path / name)
        file = tmp_path / f"{name}.gguf"
        make_gguf(tmp_path / name, file, type_name)
        config = checkpoint.load_config(file)
        assert weights_size(config, "float32", bits) <= file.stat().st_size


def test_int4_of_an_8_bit_file_is_searched_as_for_floats(tied: Callable[[str], Path]) -> None:
    file = tied("Q8_0")
    packed = packed_parameters(file, 4).packed["head"]
    again = PackedWeight.empty(4, packed.outputs, packed.inputs)
    Kernels(1).pack(
        stored_numbers(file, weight_plan(checkpoint.load_config(file))["embedding"]).numpy(), again
    )
    assert np.array_equal(packed.blocks, again.blocks)


def test_parts_may_begin_within_a_panel() -> None:
    numbers = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    data = gguf.quants.quantize(numbers, GGMLQuantizationType.Q4_0)
    packed = PackedWeight.empty(4, 70, 64)
    GgufTensor(GGMLQuantizationType.Q4_0, data).pack_into(Kernels(1).pack, packed, 20)
    stored = gguf.quants.dequantize(data, GGMLQuantizationType.Q4_0)
    assert np.array_equal(packed.unpack()[20:], torch.from_numpy(stored))


def test_value_that_the_kernels_do_not_have_is_rounded() -> None:
    data = gguf.quants.quantize(np.ones((1, 32), np.float32), GGMLQuantizationType.Q8_0)
    data[0, 2] = 128  # as a signed byte -128
    packed = PackedWeight.empty(8, 1, 32)
    GgufTensor(GGMLQuantizationType.Q8_0, data).pack_into(Kernels(1).pack, packed, 0)
    stored = torch.from_numpy(gguf.quants.dequantize(data, GGMLQuantizationType.Q8_0))
    assert stored[0, 0] < -1
    assert np.allclose(packed.unpack(), stored, atol=0.005)


def random_blocks(kind: GGMLQuantizationType, rows: int) -> NDArray[np.uint8]:
    """[rows, bytes of 256 numbers], all of them finite."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (64 * rows * 256 // block, block_bytes), np.uint8)
    if kind == GGMLQuantizationType.MXFP4:
        blocks[:, 0] = random.integers(104, 144, len(blocks))  # of which half precision has all
    if kind == GGMLQuantizationType.Q8_0:
        blocks[:, 2:][blocks[:, 2:] == 128] = 127  # -128 has a test of its own
    with np.errstate(all="ignore"):
        numbers = gguf.quants.dequantize(blocks, kind)
    finite: NDArray[np.uint8] = blocks[np.isfinite(numbers).all(axis=1)]
    return finite[: rows * 256 // block].reshape(rows, -1)


def dequantised(data: NDArray[np.uint8], kind: GGMLQuantizationType) -> Tensor:
    return torch.from_numpy(gguf.quants.dequantize(data, kind))


def test_all_types_that_the_package_dequantises_are_served() -> None:
    def is_known(kind: GGMLQuantizationType) -> bool:
        try:
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            numbers = gguf.quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
        except NotImplementedError:
            return False
        return bool(numbers.shape == (1, block))

    floats = {GGMLQuantizationType.F32, GGMLQuantizationType.F16}
    known = {kind for kind in GGMLQuantizationType if kind not in floats and is_known(kind)}
    assert known | floats == STORED_TYPES


@pytest.mark.parametrize("kind", QUANTISED_TYPES, ids=lambda kind: str(kind.name))
def test_numbers_of_random_blocks_are_the_package_s(kind: GGMLQuantizationType) -> None:
    data = random_blocks(kind, 5)
    assert np.array_equal(GgufTensor(kind, data).numbers(), dequantised(data, kind))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "IQ4_NL", "MXFP4"])
def test_int8_has_all_values_of_some_types(kind: str) -> None:
    quantization = GGMLQuantizationType[kind]
    data = random_blocks(quantization, 33)
    packed = PackedWeight.empty(8, 40, 256)
    GgufTensor(quantization, data).pack_into(Kernels(1).pack, packed, 7)
    assert np.array_equal(packed.unpack()[7:], dequantised(data, quantization))


@pytest.mark.parametrize("exponent", [103, 144])
def test_power_of_two_beyond_half_precision_is_rounded(exponent: int) -> None:
    data = random_blocks(GGMLQuantizationType.MXFP4, 1)
    data[0, 0] = exponent
    packed = PackedWeight.empty(8, 1, 256)
    GgufTensor(GGMLQuantizationType.MXFP4, data).pack_into(Kernels(1).pack, packed, 0)
    first = dequantised(data, GGMLQuantizationType.MXFP4)[0, :32]
    largest = float(first.abs().max())
    assert np.allclose(packed.unpack()[0, :32], first, rtol=0, atol=largest / 20 + 2**-24)


@pytest.mark.parametrize("bits", [4, 8])
def test_scale_that_is_no_number_is_refused(bits: Bits) -> None:
    data = gguf.quants.quantize(np.ones((1, 32), np.float32), GGMLQuantizationType.Q4_0)
    data[0, :2] = 0x00, 0x7C  # infinity
    tensor = GgufTensor(GGMLQuantizationType.Q4_0, data)
    with pytest.raises(UnusableWeight, match="not finite"):
        tensor.pack_into(Kernels(1).pack, PackedWeight.empty(bits, 1, 32), 0)
    with pytest.raises(UnusableWeight, match="not finite"):
        tensor.numbers()


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig("llama3", 500_000.0, 8.0),  # Llama 3.1
        RopeConfig("llama3", 500_000.0, 32.0),  # Llama 3.2
    ],
    ids=["factor 8", "factor 32"],
)
def test_llama3_rope_is_found_from_its_factors(rope: RopeConfig) -> None:
    base = rope.theta ** -(np.arange(64) / 64)
    factors = base / frequencies(rope, 128, 8192)
    found = llama3_rope(factors.astype(np.float32).astype(np.float64), rope.theta)
    assert found["factor"] == pytest.approx(rope.factor)
    assert found["original_max_position_embeddings"] == pytest.approx(8192, rel=1e-3)


def test_tokenizer_is_the_same(tmp_path: Path) -> None:
    config, file = checkpoint.load_config(EMBEDDED), tmp_path / "model.gguf"
    make_gguf(EMBEDDED, file, "F16")
    assert checkpoint.load_config(file).eos_token_ids == config.eos_token_ids
    ours = load_tokenizer(EMBEDDED, config.eos_token_ids)
    theirs = load_tokenizer(file, config.eos_token_ids)
    text = (EMBEDDED / "heldout.txt").read_text()
    assert theirs.encode(text) == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == text
    messages = [{"role": "user", "content": "Hello, 1 2 345!"}]
    assert theirs.encode_chat(messages) == ours.encode_chat(messages)


def test_a_file_or_its_folder_is_a_model(tmp_path: Path) -> None:
    file = small_gguf(tmp_path)
    assert checkpoint.locate(str(file)) == file
    assert checkpoint.locate(str(tmp_path)) == file
    for quantization in ("none", "int8", "int4"):
        options = EngineOptions(device="cpu", max_rows=4, quantization=quantization)
        assert check_one(tmp_path, options) == []
