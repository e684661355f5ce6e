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
from inference_api.kernels.interface import Floats
from inference_api.loading.config import cache_capacity
from inference_api.loading.memory import GIB

LEAST_LENGTH = 128
SPARE_BYTES = GIB  # weights and caches leave a GPU so much, for torch and recorded steps
MOST_RECORDED_DRAWS = 32  # tokens; more would take the vocabulary's memory as often, in float64
WARM_UP_RUNS = 3  # before capture, as PyTorch's notes on CUDA graphs have it

Forward = Callable[[Tensor], Sequence[Tensor]]
LengthForward = Callable[
    [Sequence[int], Tensor, Tensor], Sequence[Tensor]
]  # with the lengths up to one, and what other layers made
Step = Callable[[], Sequence[Tensor]]
Draw = Callable[
    [Sequence[Tensor], Tensor], Sequence[Tensor]
]  # from the outputs and the inputs: see `draws`
Capture = Callable[[Forward, Tensor], Step]  # see `captured`


class FixedStep:
    """A step of one shape, for each of a few lengths that it may read of the cache: short contexts
    do not pay for long ones. Launched operation by operation until it is recorded."""

    def __init__(
        self,
        forward: LengthForward,
        inputs: Lines,
        lengths: Sequence[int],
        device: torch.device,
        draws: Sequence[Draw] = (),
        made_size: int = 0,
    ) -> None:
        """`inputs` are those of absent tokens. `lengths` ascend. `made_size`: of what other layers
        made of a token."""
        self._absent = inputs
        given = torch.from_numpy(inputs.copy())
        self._given = pinned(given, device)
        self._host: Lines = self._given.numpy()
        self._inputs = given.to(device, copy=True)
        self._given_made = pinned(torch.zeros(inputs.shape[1], made_size), device)
        self._made = self._given_made.to(device, copy=True)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._forwards = {
            length: partial(forward, lengths[: index + 1], self._made)
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
        if others or outputs is not first() or self.num_tokens > MOST_RECORDED_DRAWS:
            return  # they lie elsewhere each time, or are many
        for draw in self._draws:
            self._recorded_draws.append(capture(partial(draw, outputs), self._inputs))

    def run(self, inputs: Lines, made: Floats | None = None) -> Sequence[Tensor]:
        """Run the shortest step that covers all positions, with these tokens and behind them absent
        ones. The next run may overwrite the outputs. `made` [tokens, made_size]: by other
        layers."""
        if self._copied is not None:
            self._copied.synchronize()
        self._host[:] = self._absent
        self._host[:, : inputs.shape[1]] = inputs
        furthest = int(inputs[POSITIONS].max())
        self._inputs.copy_(self._given, non_blocking=True)
        if made is not None:
            self._given_made.numpy()[: len(made)] = made
            self._made.copy_(self._given_made, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        step = next(step for length, step in self._steps.items() if furthest < length)
        self._outputs = step()
        return self._outputs

    def output(self, number: int) -> Tensor:
        """One of the last run's, and behind these the tokens [n] by each of the draws."""
        kind = number - len(self._outputs)
        if kind < 0:
            return self._outputs[number]
        if self._recorded_draws:
            return self._recorded_draws[kind]()[0]
        return self._draws[kind](self._outputs, self._inputs)[0]


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the host where `device` reads and writes it without waiting for it."""
    return tensor.pin_memory() if device.type == "cuda" and tensor.numel() else tensor


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
    """Returns `captured` for graphs that share memory, since they never run at the same time. They
    share a stream, too: for each one that multiplies, cuBLAS takes memory of its own, 32 MiB on an
    H100, which it never gives back.
    """
    pool, stream = cache(torch.cuda.graph_pool_handle), cache(torch.cuda.Stream)
    first: list[Step] = []  # keeps the memory, while more are captured

    def capture(forward: Forward, inputs: Tensor) -> Step:
        step = captured(forward, inputs, pool(), stream())
        first[:] = first or [step]
        return step

    return capture


def captured(forward: Forward, inputs: Tensor, pool: Any, stream: torch.cuda.Stream) -> Step:
    """`forward(inputs)` for whatever `inputs` then holds, into the same memory each time.

    `forward` must not look at values on the host, nor depend on any that change elsewhere than on
    the device. It runs a few times first, when libraries allocate what they need only once. What a
    step returns may be overwritten by any other of the same `pool`. Raises RuntimeError when CUDA
    refuses.
    """
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):  # which is left even where a capture cannot end
        for _ in range(WARM_UP_RUNS):
            forward(inputs)
        current.wait_stream(stream)
        # What another thread does meanwhile, such as copy weights, is no part of it and no fault.
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            outputs = forward(inputs)

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return outputs

    return replay
