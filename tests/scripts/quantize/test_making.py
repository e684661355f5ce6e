"""A file that is written is read as it was meant, and says what its source says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor
from torch.nn.functional import kl_div

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.kernels.library import Kernels
from inference_api.loading import checkpoint
from inference_api.loading.files import read_headers
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.layout import linear_weights
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import settle
from inference_api.loading.weights import Packing, load_parameters
from inference_api.runner import RowStep, place_own_pages
from lab.models.gguf_file import make_gguf
from lab.models.random_model import SHAPES, make_random_model
from scripts.quantize import cli
from scripts.quantize.calibration import Calibration
from scripts.quantize.making import OWN_KEYS, make
from scripts.quantize.plan import MOST_BITS
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.loading.test_gguf import stored_numbers

WINDOW = 128


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    make_random_model(replace(SHAPES["tiny"], hidden=256, ffn=288), folder / "model")
    make_gguf(folder / "model", folder / "model.gguf", "F16")
    return folder / "model.gguf"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, [*map(str, arguments)])


@pytest.fixture(scope="module")
def small(source: Path) -> Path:
    target = source.with_name("small.gguf")
    told = run(source, target)
    assert told.exit_code == 0
    assert f"{target.stat().st_size} bytes of {source.stat().st_size}" in told.stdout
    [bits] = re.findall(r"([\d.]+) bits a weight", told.stdout)
    assert float(bits) <= MOST_BITS
    return target


def test_matrices_are_served_as_they_were_written(small: Path) -> None:
    config = checkpoint.load_config(small)
    options = EngineOptions(device="cpu", max_rows=1, quantization="file")
    tensors = read_headers([small], config.tensor_names)
    assert {tensor.dtype for tensor in tensors.values()} >= {"Q5_K", "IQ4_NL"}  # 288 inputs
    kept = settle(config, options, tensors).whole
    packed = load_parameters([small], kept, "float32", Packing(Kernels(1), 8)).packed
    for name, parts in linear_weights(kept).items():
        assert np.array_equal(packed[name].unpack(), stored_numbers(small, parts))


def test_all_else_is_as_it_was(source: Path, small: Path) -> None:
    before, after = (read_gguf(file) for file in (source, small))
    assert without_own(before.file.metadata) == without_own(after.file.metadata)
    assert replace(before.config, embedding_bits={}) == replace(after.config, embedding_bits={})
    vectors = [name for name, tensor in before.tensors.items() if len(tensor.shape) == 1]
    assert vectors
    for name in vectors:
        assert np.array_equal(before.tensors[name].read(source), after.tensors[name].read(small))


def without_own(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in metadata.items()
        if key not in OWN_KEYS and not key.startswith("GGUF.")
    }


def test_calibration_brings_predictions_nearer(source: Path, small: Path, tmp_path: Path) -> None:
    ids = (np.random.default_rng(0).zipf(1.3, 3 * WINDOW) % 200).tolist()
    *given, read = [ids[first : first + WINDOW] for first in range(0, len(ids), WINDOW)]
    target = tmp_path / "calibrated.gguf"
    make(source, target, lambda file, model: Calibration(file, model.config, given))
    meant, calibrated, plain = (likelihoods(file, read) for file in (source, target, small))
    assert divergence(meant, calibrated) < 0.7 * divergence(meant, plain)


def likelihoods(file: Path, tokens: Sequence[int]) -> Tensor:
    """Logarithms [tokens, vocabulary] of what may follow each."""
    options = EngineOptions(device="cpu", dtype="float32", max_rows=1, max_seq_len=WINDOW)
    runner = KernelRunner(file, options)
    runner.load()
    place_own_pages(runner)
    row = RowStep(0, 0, tokens, (ANY_DRAW,) * len(tokens))
    return torch.from_numpy(runner.decoder.forward([row]).logits.copy()).log_softmax(-1)


def divergence(meant: Tensor, found: Tensor) -> float:
    return float(kl_div(found, meant, log_target=True, reduction="batchmean"))


def test_other_files_are_refused_with_a_remedy(source: Path, tmp_path: Path) -> None:
    tensors = source.parent / "model" / "model.safetensors"
    for model, target, remedy in (
        (tensors, tmp_path / "small.gguf", "convert"),
        (source.parent / "model", tmp_path / "small.gguf", "convert"),
        (source, tmp_path / "nowhere" / "small.gguf", "make it"),
        (source, source, "another name"),
        (source, tmp_path / "small.bin", "name it"),
    ):
        refused = run(model, target)
        assert (refused.exit_code, remedy in refused.stderr) == (1, True)
        assert "cannot start" not in refused.stderr  # nothing is served here
    assert not any(tmp_path.iterdir())


def test_a_text_that_is_too_long_is_refused(source: Path, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    with text.open("wb") as file:
        file.truncate(cli.MAX_TEXT_BYTES + 1)
    refused = run(source, tmp_path / "small.gguf", "--calibrate", text)
    assert refused.exit_code == 1
    assert str(cli.MAX_TEXT_BYTES) in refused.stderr
