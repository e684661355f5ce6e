"""Weights that are no numbers are found by their byte."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inference_api.engine.loading import weight_numbers
from inference_api.engine.loading.weight_files import read_entries
from inference_api.engine.loading.weight_numbers import number_faults
from inference_api.model_settings import EMBEDDED_MODEL

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def test_shipped_weights_are_finite() -> None:
    assert number_faults(EMBEDDED_MODEL / "model.safetensors") == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_first_that_is_not_finite_is_named_with_its_byte(
    dtype: torch.dtype, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_numbers, "CHUNK_BYTES", 64)
    weights = torch.linspace(-1e4, 1e4, 100).to(dtype)
    weights[77:79] = value
    file = tmp_path / "w.safetensors"
    save_file({"ids": torch.arange(3), "w": weights, "ok": torch.ones(4)}, file)
    start, entries = read_entries(file)
    byte = start + entries["w"]["data_offsets"][0] + 77 * weights.itemsize
    assert number_faults(file) == [f"{file}: w is not finite, at byte {byte}; get the file again."]
    bad = torch.frombuffer(bytearray(file.read_bytes()[byte:][: weights.itemsize]), dtype=dtype)
    assert not bad.isfinite().any()


def test_largest_numbers_are_finite(tmp_path: Path) -> None:
    largest = {str(dtype): torch.tensor([torch.finfo(dtype).max]) for dtype in DTYPES}
    save_file(
        {
            name: each.to(getattr(torch, name.removeprefix("torch.")))
            for name, each in largest.items()
        },
        tmp_path / "w.safetensors",
    )
    assert number_faults(tmp_path / "w.safetensors") == []


def test_file_that_is_cut_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"w": torch.ones(4)}, file)
    file.write_bytes(file.read_bytes()[:-4])
    [fault] = number_faults(file)
    assert "its tensors should end at byte" in fault
