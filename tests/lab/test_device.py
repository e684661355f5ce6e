"""The checks of a machine with a GPU, as far as they go without one."""

from pathlib import Path

import pytest
import torch

from inference_api.engine.cuda.runner import CudaRunner
from lab.device.__main__ import main
from lab.device.launches import STEPS_OF, TritonRunner, operations_a_layer
from lab.device.switches import beside, experts, switched
from lab.models.random_model import SHAPES


def test_checks_are_rehearsed_without_a_gpu(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checks = "machine", "kernels", "products", "launches", "host", "bits"
    assert main(["--rehearse", "--only", *checks, "--out", str(tmp_path)]) == 0
    assert "launches a layer" in (tmp_path / "launches.txt").read_text()
    assert "equal" in (tmp_path / "bits.txt").read_text()
    assert "| bits | ok |" in capfd.readouterr().out


def test_experts_switch_without_a_gpu(tmp_path: Path) -> None:
    resident, other, _ = experts(SHAPES["tiny"], "cpu", tmp_path)
    resident.load()
    line, is_equal = switched(other)
    assert is_equal
    assert line.endswith("; equal")
    assert "while others load" in beside(resident, other)


def test_a_layer_launches_ever_fewer_operations() -> None:
    """Lower these when one goes."""
    assert operations_a_layer(CudaRunner) == {"one token": 19, "a draft": 19, "a prompt": 17}


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is CUDA")
def test_a_layer_by_triton_launches_four_products_and_six_more() -> None:
    found = operations_a_layer(TritonRunner)
    assert found == dict.fromkeys(STEPS_OF, 10)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is CUDA")
def test_a_layer_of_packed_weights_launches_no_more() -> None:
    """Operations add the parts of products themselves."""
    assert operations_a_layer(TritonRunner, "int8", ["one token"]) == {"one token": 10}
