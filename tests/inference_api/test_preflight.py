"""What is refused before a worker exists."""

import pytest
import torch

from inference_api.engine import hardware
from inference_api.errors import StartupError
from inference_api.preflight import check_start
from inference_api.settings import Settings
from tests.ports import free_port


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_that_is_not_there_is_a_fault_with_a_remedy() -> None:
    with pytest.raises(StartupError) as caught:
        check_start(Settings(device="cuda", service_port=free_port()), with_model=True)
    [fault] = caught.value.faults
    assert fault.startswith("DEVICE=cuda, but torch finds no CUDA device; set DEVICE=cpu")


@pytest.mark.slow
def test_torch_that_says_nothing_is_asked_again_by_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "ASK_TORCH", "raise SystemExit('broken')")
    assert not hardware.lacks_cuda()
    monkeypatch.setattr(hardware, "ASK_TORCH", "import time; time.sleep(60)")
    monkeypatch.setattr(hardware, "ASK_TIMEOUT_S", 0.1)
    assert not hardware.lacks_cuda()
