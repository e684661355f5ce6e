"""Steps of fixed shape, recorded as CUDA graphs, so that a step is one launch and not hundreds.

Needs a CUDA device: see "A decode step on CUDA" in docs/architecture.md for what the tests run in
its place where there is none.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from inference_api.engine.cuda.inputs import Lines
from inference_api.engine.cuda.ops import POSITIONS
from inference_api.loading.config import cache_capacity

LEAST_LENGTH = 128
WARM_UP_RUNS = 3  # before capture, as PyTorch's notes on CUDA graphs have it

Forward = Callable[[Tensor], Sequence[Tensor]]
LengthForward = Callable[[Sequence[int], Tensor], Sequence[Tensor]]  # with the lengths up to one
Step = Callable[[], Sequence[Tensor]]
Capture = Callable[[Forward, Tensor], Step]  # see `captured`


class FixedStep:
    """A step of one shape, for each of a few lengths that it may read of the cache: short contexts
    do not pay for long ones. Launched operation by operation until it is recorded."""

    def __init__(self, forward: LengthForward, inputs: Tensor, lengths: Sequence[int]) -> None:
        """`inputs` are overwritten. `lengths` ascend."""
        self._inputs = inputs
        self._forwards = {
            length: partial(forward, lengths[: index + 1]) for index, length in enumerate(lengths)
        }
        self._steps: dict[int, Step] = {
            length: partial(forward, inputs) for length, forward in self._forwards.items()
        }

    @property
    def num_tokens(self) -> int:
        return self._inputs.shape[1]

    def record(self, capture: Capture) -> None:
        for length, forward in self._forwards.items():
            self._steps[length] = capture(forward, self._inputs)

    def run(self, inputs: Lines) -> Sequence[Tensor]:
        """Run the shortest step that covers all positions. The next run may overwrite the
        outputs."""
        furthest = int(inputs[POSITIONS].max())
        self._inputs.copy_(torch.from_numpy(inputs))
        return next(step for length, step in self._steps.items() if furthest < length)()


def token_sizes(most: int) -> list[int]:
    """Returns how many tokens steps of any size have: `most`, and the powers of two below."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def step_lengths(max_seq_len: int) -> list[int]:
    """Returns the lengths that steps read of the cache, each four times the one before.

    A step attends over its own length and all shorter ones: a third more than over its own alone.
    """
    lengths = [cache_capacity(max_seq_len)]
    while lengths[0] >= 4 * LEAST_LENGTH:
        lengths.insert(0, cache_capacity(-(-lengths[0] // 4)))
    return lengths


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
