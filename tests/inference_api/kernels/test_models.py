"""Whole models with quantised weights: as good as promised, independent rows, clear refusals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.engine.paged_cache import PagedCache
from inference_api.errors import StartupError
from inference_api.kernels.packing import Bits
from inference_api.loading import checkpoint
from inference_api.loading.config import num_pages
from inference_api.loading.memory import Footprint, memory_faults, weights_size
from inference_api.loading.options import EngineOptions
from inference_api.loading.page_groups import bytes_of_pages, page_groups
from inference_api.loading.settling import device_faults
from inference_api.runner import RowStep, place_own_pages
from inference_api.settings import EMBEDDED_MODEL
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.steps import ANY_DRAW, decode
from tests.inference_api.engine.tiny_models import CONTEXT, VOCAB_SIZE
from tests.inference_api.parameters import packed_parameters, torch_parameters

ROWS = 32
HELDOUT = EMBEDDED_MODEL / "heldout.txt"


@pytest.fixture(scope="module")
def folder(tiny_model: Tiny) -> Callable[[str], Path]:
    return lambda name: tiny_model(name)


def loaded(folder: Path, quantization: str, dtype: str = "float32") -> KernelRunner:
    options = EngineOptions(
        device="cpu",
        dtype=dtype,
        max_rows=ROWS,
        max_seq_len=CONTEXT,
        quantization=quantization,
    )
    runner = KernelRunner(folder, options)
    runner.load()
    place_own_pages(runner)
    return runner


@torch.inference_mode()
def teacher_forced(runner: KernelRunner, texts: Sequence[Sequence[int]]) -> Tensor:
    """Logits [position, row, vocab] after each token of `texts`, one row each, all of a length."""
    rows = range(len(texts))
    return torch.stack(
        [
            decode(
                runner.decoder, [text[position] for text in texts], rows, [position] * len(texts)
            )
            for position in range(len(texts[0]))
        ]
    )


def at_once(runner: KernelRunner, texts: Sequence[Sequence[int]]) -> Tensor:
    """The same, [row x position, vocab], in one step."""
    steps = [RowStep(row, 0, text, (ANY_DRAW,) * len(text)) for row, text in enumerate(texts)]
    return torch.as_tensor(runner.decoder.forward(steps).logits).clone()


def random_texts(count: int, length: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(VOCAB_SIZE, (count, length), generator=generator).tolist()


@pytest.mark.parametrize(
    "name",
    [
        *("llama-tied", "mistral-window", "falcon-40b", "gemma3"),
        *("qwen3-moe", "glm4-moe", "deepseek-v3", "gpt-oss"),
    ],
)
def test_logits_stay_close(folder: Callable[[str], Path], name: str) -> None:
    texts = random_texts(4, 12)
    exact = teacher_forced(loaded(folder(name), "none"), texts)
    for quantization, bound in (("int8", 0.06), ("int4", 0.6)):
        quantised = teacher_forced(loaded(folder(name), quantization), texts)
        assert not torch.equal(quantised, exact)
        errors = (quantised - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert errors.median() < bound  # a few may be worse: of near ties another expert is chosen


def test_the_embedded_model_hardly_ever_chooses_another_token_with_int8() -> None:
    """And only where another one is nearly as likely."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED_MODEL / "tokenizer.json"))
    tokens = tokenizer.encode(HELDOUT.read_text()).ids
    texts = torch.tensor(tokens[: ROWS * CONTEXT]).view(ROWS, CONTEXT).tolist()
    plain, int8 = (at_once(loaded(EMBEDDED_MODEL, each), texts) for each in ("none", "int8"))
    is_same = plain.argmax(-1) == int8.argmax(-1)
    best, second = plain.topk(2).values.unbind(-1)
    assert is_same.float().mean() >= 0.985
    assert is_same[best - second > 0.1].float().mean() >= 0.99
    assert is_same[best - second > 2.0].all()


def test_bfloat16_models_can_be_quantised_too(folder: Callable[[str], Path]) -> None:
    texts = random_texts(2, 6)
    exact = teacher_forced(loaded(folder("llama"), "none"), texts)
    quantised = teacher_forced(loaded(folder("llama"), "int8", "bfloat16"), texts)
    assert (quantised - exact).norm() / exact.norm() < 0.1


@pytest.mark.parametrize(
    ("bits", "dtype"),
    [
        *((None, torch.float32), (None, torch.bfloat16), (32, torch.float32)),
        *((16, torch.bfloat16), (8, torch.float32), (4, torch.bfloat16)),
    ],
)
@pytest.mark.parametrize(
    "name",
    ["llama", "llama-tied", "falcon-7b", "qwen3-moe-dense", "glm4-moe", "deepseek-v3", "gpt-oss"],
)
def test_memory_is_foreseen_to_the_byte(
    folder: Callable[[str], Path], name: str, bits: Bits | None, dtype: torch.dtype
) -> None:
    config, dtype_name = checkpoint.load_config(folder(name)), str(dtype).removeprefix("torch.")
    if bits is None:
        tensors = torch_parameters(folder(name), dtype).tensors.values()
        sizes = {tensor.data_ptr(): tensor.nbytes for tensor in tensors}
    else:
        parameters = packed_parameters(folder(name), bits, dtype_name)
        blocks = [weight.blocks for weight in parameters.packed.values()]
        sizes = {each.ctypes.data: each.nbytes for each in blocks}
        sizes |= {each.ctypes.data: each.nbytes for each in parameters.tensors.values()}
    assert sum(sizes.values()) == weights_size(config, dtype_name, bits)


def test_a_smaller_cache_needs_less_memory() -> None:
    config = checkpoint.load_config(EMBEDDED_MODEL)
    options = EngineOptions(dtype="float32", max_rows=32, max_seq_len=CONTEXT)
    weights = weights_size(config, "float32", 8)
    count, groups = 32 * num_pages(CONTEXT), page_groups(config, CONTEXT)
    cache = count * bytes_of_pages(config, groups, "float16")
    small = {
        dtype: PagedCache(config, 32, CONTEXT, dtype, count).pages.nbytes
        for dtype in ("int8", "int4")
    }

    def faults(available_bytes: int, kv_cache_dtype: str) -> list[str]:
        chosen = replace(options, kv_cache_dtype=kv_cache_dtype)
        return memory_faults({"m": Footprint.of(config, chosen, 8)}, available_bytes)

    assert faults(weights + cache, "auto") == []
    assert faults(weights + 2 * cache, "float32") == []
    for dtype, num_bytes in small.items():
        assert faults(weights + num_bytes, dtype) == []
        assert "USER_ROWS" in faults(weights + num_bytes - 1, dtype)[0]
    assert "USER_ROWS" in faults(weights + 2 * cache - 1, "float32")[0]
    assert "USER_ROWS" in faults(weights + cache - 1, "float16")[0]


def test_a_cache_of_int4_on_cuda_is_refused() -> None:
    config = checkpoint.load_config(EMBEDDED_MODEL)
    options = EngineOptions(device="cuda", max_rows=1, kv_cache_dtype="int4")
    [fault] = device_faults(config, options)
    assert "KV_CACHE_DTYPE=int4 is for the CPU" in fault
    assert device_faults(config, replace(options, device="cpu")) == []


def test_a_weight_that_is_no_number_is_named(folder: Callable[[str], Path], tmp_path: Path) -> None:
    for file in folder("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors[name][5, 6] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartupError, match=rf"{name} cannot be loaded: its row 5"):
        loaded(tmp_path, "int4")
