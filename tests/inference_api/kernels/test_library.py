"""What a `Kernels` object does with its threads."""

import os
import signal

import numpy as np
import pytest

from inference_api.kernels.library import Kernels, PackedWeight


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_the_same_and_ends() -> None:
    kernels = Kernels(3)
    weight, x = PackedWeight.empty(8, 300, 64), np.ones((9, 64), np.float32)
    kernels.pack(np.eye(300, 64, dtype=np.float32), weight)
    meant = kernels.linear(x, weight)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        is_equal = np.array_equal(kernels.linear(x, weight), meant)
        kernels.__del__()
        os._exit(0 if is_equal else 1)
    assert os.waitpid(child, 0)[1] == 0
