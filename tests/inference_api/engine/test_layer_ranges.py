"""A model whose layers are several runners': the bits of the one that has them all."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading.config import LayerRange
from inference_api.loading.options import EngineOptions
from inference_api.runner import RowStep, place_own_pages
from lab.models.gguf_file import make_gguf
from tests.inference_api.conftest import Tiny
from tests.inference_api.engine.steps import ANY_DRAW

OPTIONS = EngineOptions(device="cpu", max_rows=4, max_seq_len=64)
HALVES = (LayerRange(0, 1), LayerRange(1, 2))
ROWS = (
    RowStep(1, 0, range(20, 29)),
    RowStep(3, 0, [5, 17, 250, 9, 33, 9], [ANY_DRAW] * 3, (-1, 0, 1, 2, 2, 4), wants_hidden=True),
)


def loaded(folder: Path, options: EngineOptions) -> tuple[KernelRunner, KernelDecoder]:
    runner = KernelRunner(folder, options)
    runner.load()
    place_own_pages(runner)
    return runner, runner.decoder


def assert_same_bits(folder: Path, options: EngineOptions, rows: Sequence[RowStep] = ROWS) -> None:
    first, second = (loaded(folder, replace(options, layers=half))[1] for half in HALVES)
    expected = loaded(folder, options)[1].forward(rows)
    outputs = first.head(rows, second.layers(rows, first.layers(rows)))
    assert np.array_equal(outputs.logits, expected.logits)
    for one, other in zip(outputs.hidden, expected.hidden, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or np.array_equal(one, other)


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "llama-tied",
        "llama-biases",
        "qwen2-windows",
        "qwen3",
        "falcon-40b",
        "qwen3-moe-dense",
        "gemma3",
        "glm4-moe",
        "deepseek-v3",
        "gpt-oss",
        "olmo2",
    ],
)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_layers_one_after_another_have_the_bits_of_a_whole_step(
    name: str, quantization: str, tiny_model: Tiny
) -> None:
    assert_same_bits(tiny_model(name), replace(OPTIONS, quantization=quantization))


def test_gguf_file_gives_a_range_of_its_layers(tiny_model: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    make_gguf(tiny_model("llama"), file, "Q8_0")
    assert_same_bits(file, replace(OPTIONS, quantization="int8"))


def test_runner_has_its_own_layers_alone(tiny_model: Tiny) -> None:
    folder = tiny_model("llama")
    whole, *halves = (
        loaded(folder, replace(OPTIONS, layers=layers))[0] for layers in (None, *HALVES)
    )
    first, second = (runner._parameters(runner._models[0]) for runner in halves)
    assert {"embedding", "head", "layers.0.up.weight"} <= set(first.packed)
    assert set(second.tensors) == {"layers.0.attention_norm.weight", "layers.0.mlp_norm.weight"}
    for part in ("weights_bytes", "cache_bytes"):
        parts = [getattr(runner.footprint, part) for runner in halves]
        assert sum(parts) == getattr(whole.footprint, part)
