"""A forward pass recorded as a CUDA graph, so that a step is one launch and not hundreds.

Needs a CUDA device: see "A decode step on CUDA" in docs/architecture.md for what the tests run in
its place where there is none.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

WARM_UP_RUNS = 3  # before capture, as PyTorch's notes on CUDA graphs have it

Forward = Callable[[Tensor], Sequence[Tensor]]
Step = Callable[[], Sequence[Tensor]]
Capture = Callable[[Forward, Tensor], Step]  # see `captured`


def capturing() -> Capture:
    """Returns `captured` for graphs that share memory, since they never run at the same time. While
    more are captured, one of them at least has to be kept."""
    pool = cache(torch.cuda.graph_pool_handle)
    return lambda forward, inputs: captured(forward, inputs, pool())


def captured(forward: Forward, inputs: Tensor, pool: Any = None) -> Step:
    """`forward(inputs)` for whatever `inputs` then holds, into the same memory each time.

    `forward` must not look at values on the host, nor depend on any that change elsewhere than on
    the device. It runs a few times, first on a side stream, where libraries allocate what they need
    only once. What a step returns may be overwritten by any other of the same `pool`. Raises
    RuntimeError when CUDA refuses.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            forward(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool):
        outputs = forward(inputs)

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return outputs

    return replay
