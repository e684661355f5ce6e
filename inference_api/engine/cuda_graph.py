"""A forward pass recorded as a CUDA graph, so that a step is one launch and not hundreds.

Needs a CUDA device: see "A decode step on CUDA" in docs/architecture.md for what the tests run in
its place where there is none.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

WARM_UP_RUNS = 3  # before capture, as PyTorch's notes on CUDA graphs have it

Outputs = TypeVar("Outputs")

_pool = cache(torch.cuda.graph_pool_handle)


def captured(forward: Callable[[Tensor], Outputs], inputs: Tensor) -> Callable[[], Outputs]:
    """`forward(inputs)` for whatever `inputs` then holds, into the same memory each time.

    `forward` must not look at values on the host, nor depend on any that change elsewhere than on
    the device. It runs a few times, first on a side stream, where libraries allocate what they need
    only once. All graphs share memory, except for their outputs: they never run at the same time.
    Raises RuntimeError when CUDA refuses.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            forward(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, _pool()):
        outputs = forward(inputs)

    def replay() -> Outputs:
        graph.replay()
        return outputs

    return replay
