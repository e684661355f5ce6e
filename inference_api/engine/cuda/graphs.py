"""Steps of fixed shape, recorded as CUDA graphs, so that a step is one launch and not hundreds.

Recording needs a CUDA device. "A decode step on CUDA" in docs/architecture.md says what the tests
run without one.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from inference_api.engine.cuda.inputs import Lines
from inference_api.engine.cuda.ops import POSITIONS
from inference_api.kernels.interface import Floats
from inference_api.loading.config import cache_capacity
from inference_api.loading.memory import GIB

MIN_LENGTH = 128
SPARE_BYTES = GIB  # memory that weights and caches leave free for torch and recorded steps
MAX_RECORDED_DRAWS = 32  # tokens of a recorded draw; each takes a vocabulary of float64
WARM_UP_RUNS = 3  # runs before a capture, as PyTorch's notes on CUDA graphs recommend

Forward = Callable[[Tensor], Sequence[Tensor]]
LengthForward = Callable[
    [Sequence[int], Tensor, Tensor], Sequence[Tensor]
]  # arguments: lengths up to the step's own, outputs of other layers, inputs
Step = Callable[[], Sequence[Tensor]]
Draw = Callable[
    [Sequence[Tensor], Tensor], Sequence[Tensor]
]  # arguments: a step's outputs and inputs; see `draws`
Capture = Callable[[Forward, Tensor], Step]  # see `capturing`


class FixedStep:
    """A step of one shape, in variants that read a few lengths of the cache, so that short contexts
    do not pay for long ones. Until it is recorded, its operations are launched one by one."""

    def __init__(
        self,
        forward: LengthForward,
        inputs: Lines,
        lengths: Sequence[int],
        device: torch.device,
        draws: Sequence[Draw] = (),
        residual_size: int = 0,
    ) -> None:
        """`inputs` describes absent tokens. `lengths` ascend. `residual_size` is the size of other
        layers' output for a token; 0 if the step reads none."""
        self._absent = inputs
        host_inputs = torch.from_numpy(inputs.copy())
        self._host_inputs = pinned(host_inputs, device)
        self._host_lines: Lines = self._host_inputs.numpy()
        self._inputs = host_inputs.to(device, copy=True)
        self._host_residual = pinned(torch.zeros(inputs.shape[1], residual_size), device)
        self._residual = self._host_residual.to(device, copy=True)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._forwards = {
            length: partial(forward, lengths[: index + 1], self._residual)
            for index, length in enumerate(lengths)
        }
        self._steps: dict[int, Step] = {
            length: partial(forward, self._inputs) for length, forward in self._forwards.items()
        }
        self._draws = draws
        self._recorded_draws: list[Step] = []
        self._outputs: Sequence[Tensor] = ()

    @property
    def num_tokens(self) -> int:
        return self._inputs.shape[1]

    def record(self, capture: Capture) -> None:
        for length, forward in self._forwards.items():
            self._steps[length] = capture(forward, self._inputs)
        first, *others = self._steps.values()
        outputs = first()
        if others or outputs is not first() or self.num_tokens > MAX_RECORDED_DRAWS:
            return  # draws are recorded for few outputs, which stay at one address
        for draw in self._draws:
            self._recorded_draws.append(capture(partial(draw, outputs), self._inputs))

    def run(self, inputs: Lines, residual: Floats | None = None) -> Sequence[Tensor]:
        """Run the shortest variant that covers all positions, with these tokens and absent ones
        after them. `residual` [tokens, residual_size] is the output of other layers. Returns the
        outputs, which the next run may overwrite."""
        if self._copied is not None:
            self._copied.synchronize()
        self._host_lines[:] = self._absent
        self._host_lines[:, : inputs.shape[1]] = inputs
        furthest = int(inputs[POSITIONS].max())
        self._inputs.copy_(self._host_inputs, non_blocking=True)
        if residual is not None:
            self._host_residual.numpy()[: len(residual)] = residual
            self._residual.copy_(self._host_residual, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        step = next(step for length, step in self._steps.items() if furthest < length)
        self._outputs = step()
        return self._outputs

    def output(self, number: int) -> Tensor:
        """Returns an output of the last run; numbers after the last give each draw's tokens [n]."""
        kind = number - len(self._outputs)
        if kind < 0:
            return self._outputs[number]
        if self._recorded_draws:
            return self._recorded_draws[kind]()[0]
        return self._draws[kind](self._outputs, self._inputs)[0]


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the host, pinned if `device` is a GPU, so that copies need not wait."""
    return tensor.pin_memory() if device.type == "cuda" and tensor.numel() else tensor


def token_sizes(most: int) -> list[int]:
    """Returns the sizes of steps if any size is allowed: `most`, and the powers of two below."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def step_lengths(max_seq_len: int) -> list[int]:
    """Returns the lengths of the cache that steps read, each four times the one before.

    A step attends over its own length and all shorter ones: a third more than over its own alone.
    """
    lengths = [cache_capacity(max_seq_len)]
    while lengths[0] >= 4 * MIN_LENGTH:
        lengths.insert(0, cache_capacity(-(-lengths[0] // 4)))
    return lengths


def capturing() -> Capture:
    """Returns what makes a step that runs `forward` on the current contents of `inputs`, with its
    results in the same memory each time. Any other of these steps may overwrite the results, since
    they never run at the same time and so share memory. They also share a stream, because cuBLAS
    takes memory for each stream that multiplies (32 MiB on an H100) and never frees it.

    `forward` must not read values on the host, nor depend on any that change outside the device. It
    runs a few times first, because libraries allocate some memory only once. Raises RuntimeError if
    CUDA refuses.
    """
    of_pool, of_stream = cache(torch.cuda.graph_pool_handle), cache(torch.cuda.Stream)
    first: list[Step] = []  # keeps the shared memory alive between captures

    def capture(forward: Forward, inputs: Tensor) -> Step:
        graph, pool, stream = torch.cuda.CUDAGraph(), of_pool(), of_stream()
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):  # left even if the capture fails
            for _ in range(WARM_UP_RUNS):
                forward(inputs)
            current.wait_stream(stream)
            # Other threads may meanwhile launch work, such as copies of weights, not captured.
            with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                outputs = forward(inputs)

        def replay() -> Sequence[Tensor]:
            graph.replay()
            return outputs

        first[:] = first or [replay]
        return replay

    return capture
