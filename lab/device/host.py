"""How long the host works for a step, whatever the device does meanwhile.

Steps are recorded by what does nothing: a replay gives what the recording gave. What is left is all
that a runner does, and on CUDA two copies, of what the tokens are and of the drawn ones.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from inference_api.engine.cuda.decoder import Decoder
from inference_api.engine.cuda.graphs import Forward, Step
from inference_api.engine.cuda.ops import Operations
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from lab.device.launches import CONTEXT_TOKENS, loaded
from lab.models.random_model import SHAPES

ROWS, TIMES = (1, 8, 32), 200
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "top_p 0.9": SamplingParams(top_p=0.9),
    "temperature 1": SamplingParams(),
    "a penalty, in the sampler": SamplingParams(repetition_penalty=1.1),
}


class OfAnySize(TorchOps):
    """In steps as kernels by Triton have them."""

    is_of_any_size = True


class OnCpu(CudaRunner):
    def _decoder(self, make: Callable[[Operations], Decoder], rope: Rope) -> Decoder:
        return make(OfAnySize(self._config, self._cache, rope))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    kind = CudaRunner if arguments.device == "cuda" else OnCpu
    runner = loaded(SHAPES[arguments.shape], arguments.device, kind=kind, quantization="int8")
    with torch.inference_mode():
        runner.decoder.record(still)
    for name, params in WAYS.items():
        times = ", ".join(f"{rows} rows {host_us(runner, rows, params):.0f} us" for rows in ROWS)
        print(f"{name}: {times}", flush=True)


def still(forward: Forward, inputs: Tensor) -> Step:
    """A recording of nothing: see `graphs.Capture`."""
    outputs: Sequence[Tensor] = forward(inputs)
    return lambda: outputs


def host_us(runner: CudaRunner, num_rows: int, params: SamplingParams) -> float:
    """Of a step in which each row draws one token: the median."""
    rows = [
        RowStep(
            row, CONTEXT_TOKENS + row, (7,), (Draw(params, (7,), (7,), prompt_ids=frozenset((7,))),)
        )
        for row in range(num_rows)
    ]
    times = []
    for _ in range(TIMES):
        began_s = time.perf_counter()
        runner.step(rows)
        times.append(time.perf_counter() - began_s)
    return 1e6 * median(times)


if __name__ == "__main__":
    main()
