"""DTYPE=auto on the CPU: weights as the checkpoint has them."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading import checkpoint, hardware
from inference_api.loading.checkpoint import load_config
from inference_api.loading.memory import weights_size
from inference_api.loading.options import EngineOptions
from inference_api.loading.page_groups import bytes_of_pages, page_groups
from inference_api.runner import place_own_pages
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.checks import check_one
from tests.inference_api.engine.steps import decode, prefill
from tests.inference_api.engine.tiny_models import CONTEXT, VOCAB_SIZE
from tests.inference_api.parameters import packed_parameters

Change = Callable[[str, Tensor], Tensor]
ROWS = 3
LEAST_SIMILARITY = 0.999


@pytest.fixture
def folder(tiny_model: Tiny, tmp_path: Path) -> Callable[..., Path]:
    """A tiny model with its tensors changed, all to bfloat16 if not told otherwise."""

    def make(name: str = "llama", change: Change = lambda _, tensor: tensor.bfloat16()) -> Path:
        made = Path(copytree(tiny_model(name), tmp_path / name))
        file = made / "model.safetensors"
        tensors = {name: change(name, tensor) for name, tensor in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})
        return made

    return make


def loaded(model: Path, **options: object) -> KernelRunner:
    chosen = EngineOptions(device="cpu", max_rows=ROWS, max_seq_len=CONTEXT, **options)  # type: ignore[arg-type]
    runner = KernelRunner(model, chosen)
    runner.load()
    place_own_pages(runner)
    return runner


@torch.inference_mode()
def logits(runner: KernelRunner) -> Tensor:
    """After prompts of 1 to 41 tokens and 8 steps, all rows together: [steps, rows, vocab]."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(VOCAB_SIZE, (ROWS, CONTEXT), generator=generator).tolist()
    lengths = [1 + 20 * row for row in range(ROWS)]
    for row, length in enumerate(lengths):
        prefill(runner.decoder, row, 0, texts[row][:length])
    steps = []
    for step in range(8):
        positions = [length + step for length in lengths]
        tokens = [texts[row][position] for row, position in enumerate(positions)]
        steps.append(decode(runner.decoder, tokens, range(ROWS), positions))
    return torch.stack(steps)


def form(runner: KernelRunner) -> tuple[str, str]:
    """What became of DTYPE=auto, and the cache."""
    return runner.facts.dtype, runner.facts.kv_cache_dtype


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "llama-tied", "gemma3", "falcon-40b"),
        *("gpt-oss", "glm4-moe", "deepseek-v3", "qwen3-moe"),
    ],
)
def test_bfloat16_checkpoint_is_kept_and_nearly_says_what_it_says_in_float32(
    folder: Callable[..., Path], name: str
) -> None:
    model = folder(name)
    kept = loaded(model)
    assert form(kept) == ("bfloat16", "float32")
    both = logits(kept), logits(loaded(model, dtype="float32"))
    similarity = torch.cosine_similarity(*both, dim=-1)
    # A token whose activations are rounded may choose other experts.
    has_experts = load_config(model).mixture is not None
    assert (similarity.median() if has_experts else similarity.min()) > LEAST_SIMILARITY


def test_vectors_of_a_mixed_checkpoint_are_not_rounded(folder: Callable[..., Path]) -> None:
    model = folder("qwen3", lambda _, tensor: tensor.bfloat16() if tensor.ndim > 1 else tensor)
    kept = loaded(model)
    assert form(kept) == ("bfloat16", "float32")
    vectors = packed_parameters(model, 16, "bfloat16").tensors
    norm = load_file(model / "model.safetensors")["model.norm.weight"]
    assert torch.equal(torch.from_numpy(vectors["final_norm.weight"]), norm)
    assert not torch.equal(norm.bfloat16().float(), norm)


def test_gguf_file_of_bfloat16_is_kept_with_the_bits_of_the_checkpoint(
    folder: Callable[..., Path], tmp_path: Path
) -> None:
    model, file = folder(), tmp_path / "model.gguf"
    make_gguf(model, file, "BF16")
    kept = loaded(file)
    assert form(kept) == ("bfloat16", "float32")
    assert torch.equal(logits(kept), logits(loaded(model)))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_embedding_beside_quantised_weights_is_kept_with_the_bits_of_float32(
    folder: Callable[..., Path], quantization: str
) -> None:
    model = folder("llama-tied")
    kept = loaded(model, quantization=quantization)
    assert form(kept) == ("bfloat16", "int8")
    exact = loaded(model, quantization=quantization, dtype="float32")
    assert torch.equal(logits(kept), logits(exact))


def one_matrix_exact(name: str, tensor: Tensor) -> Tensor:
    return tensor if name.endswith("layers.1.mlp.down_proj.weight") else tensor.bfloat16()


@pytest.mark.parametrize(
    "change",
    [lambda _, tensor: tensor, lambda _, tensor: tensor.half(), one_matrix_exact],
    ids=["float32", "float16", "one float32 matrix"],
)
def test_what_bfloat16_would_round_is_served_in_float32(
    folder: Callable[..., Path], change: Change
) -> None:
    assert form(loaded(folder("llama", change))) == ("float32", "float32")


@pytest.mark.parametrize("type_name", ["F32", "F16", "Q8_0"])
def test_gguf_files_of_other_types_are_served_in_float32(
    folder: Callable[..., Path], tmp_path: Path, type_name: str
) -> None:
    file = tmp_path / "model.gguf"
    make_gguf(folder(), file, type_name)
    assert form(loaded(file)) == ("float32", "float32")


def test_what_is_asked_for_is_as_it_was(folder: Callable[..., Path]) -> None:
    model = folder()
    assert form(loaded(model, dtype="bfloat16")) == ("bfloat16", "float16")
    assert form(loaded(model, kv_cache_dtype="float16")) == ("bfloat16", "float16")
    assert form(loaded(model, kv_cache_dtype="int8")) == ("bfloat16", "int8")


def test_memory_is_foreseen_for_weights_as_they_are(
    folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = folder()
    config = checkpoint.load_config(model)
    needed = weights_size(config, "bfloat16", 16) + bytes_of_pages(
        config, page_groups(config, 16), dtype="float32"
    )
    options = EngineOptions(device="cpu", max_rows=1, max_seq_len=16)
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: needed)
    assert check_one(model, options) == []
    KernelRunner(model, options).load()
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: needed - 1)
    [fault] = check_one(model, options)
    assert fault.startswith("Memory:")
