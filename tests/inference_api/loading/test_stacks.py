"""Experts that lie in one tensor serve the same numbers as single ones."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_api.loading.checkpoint import load_config
from inference_api.loading.files import read_headers, shape_faults
from inference_api.loading.stacks import singles
from tests.inference_api.conftest import Tiny
from tests.inference_api.parameters import numbers_of

WEIGHTS = "model.safetensors"
EXPERTS = "model.layers.0.mlp.experts"


def stacked(folder: Path, target: Path) -> None:
    """A copy of the tiny model with all experts of a layer in two tensors."""
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(target / WEIGHTS)
    mixture = load_config(folder).mixture
    assert mixture is not None
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        gates, ups, downs = (
            torch.stack(
                [tensors.pop(f"{experts}.{e}.{kind}.weight") for e in range(mixture.num_experts)]
            )
            for kind in ("gate_proj", "up_proj", "down_proj")
        )
        tensors[f"{experts}.gate_up_proj"] = torch.cat([gates, ups], 1)
        tensors[f"{experts}.down_proj"] = downs
    save_file(tensors, target / WEIGHTS, {"format": "pt"})


def test_stacked_experts_are_the_single_ones(tiny_model: Tiny, tmp_path: Path) -> None:
    folder = tiny_model("qwen3-moe")
    stacked(folder, tmp_path)
    config = load_config(folder)
    assert shape_faults(read_headers([tmp_path / WEIGHTS], config.tensor_names), config) == []
    expected, actual = (numbers_of(each) for each in (folder, tmp_path))
    assert expected.keys() == actual.keys()
    assert all(torch.equal(tensor, actual[name]) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("name", "shape", "num_bytes"),
    [
        (f"{EXPERTS}.gate_up_proj", (4, 8), 128),
        (f"{EXPERTS}.gate_up_proj", (4, 7, 8), 896),
        (f"{EXPERTS}.gate_up_proj", (4, 8, 8), 1023),
        (f"{EXPERTS}.down_proj", (0, 8, 8), 0),
        (f"{EXPERTS}.down_proj", (2**40, 8, 0), 0),
        ("model.layers.0.mlp.down_proj", (4, 8, 8), 1024),
    ],
)
def test_what_is_no_stack_stays_as_it_is(name: str, shape: tuple[int, ...], num_bytes: int) -> None:
    assert singles(name, shape, num_bytes, "llama") is None


@pytest.mark.parametrize(
    ("name", "shape", "num_bytes"),
    [
        (f"{EXPERTS}.gate_up_proj", (4, 8, 7), 896),
        (f"{EXPERTS}.gate_up_proj", (4, 8), 128),
        (f"{EXPERTS}.gate_up_proj_bias", (4, 7), 112),
        (f"{EXPERTS}.gate_up_proj_blocks", (4, 8, 2), 64),
        (f"{EXPERTS}.gate_up_proj_blocks", (4, 8, 1, 16), 511),
        (f"{EXPERTS}.down_proj_scales", (4,), 4),
        (f"{EXPERTS}.down_proj_scales", (), 1),
        (f"{EXPERTS}.down_proj_scales", (2**40, 8, 1), 0),
    ],
)
def test_what_is_no_stack_of_gpt_oss_stays_as_it_is(
    name: str, shape: tuple[int, ...], num_bytes: int
) -> None:
    assert singles(name, shape, num_bytes, "gpt_oss") is None
