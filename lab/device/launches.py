"""What a step launches: operations a layer, kernels, the longest of them, and the time between.

A step of one row is profiled as it is recorded or, on the CPU, as it is launched. Operations are
counted on the CPU, which runs the same ones, those by Triton where TRITON_INTERPRET=1: what only
views or allocates memory is none.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from inference_api.engine.cuda.decoder import Decoder
from inference_api.engine.cuda.graphs import SPARE_BYTES
from inference_api.engine.cuda.ops import Operations
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from lab.models.random_model import SHAPES, Shape, make_random_model

CONTEXT_TOKENS, SHOWN, STEPS = 128, 10, 5
QUANTIZATIONS = ("none", "int8", "int4")
DRAW = Draw(SamplingParams(), (), ())
STEPS_OF = {
    "one token": RowStep(0, CONTEXT_TOKENS - 1, (7,), (DRAW,)),
    "a draft": RowStep(0, CONTEXT_TOKENS - 1, (7, 7), (DRAW, DRAW)),
    "a prompt": RowStep(0, 0, (7,) * (CONTEXT_TOKENS // 2)),
}
KINDS = {  # by a part of a kernel's name; what has none of them is small
    "product": ("gemm", "gemv", "cutlass", "nvjet", "cublas", "::mm", "addmm", "linear"),
    "attention": ("flash", "fmha", "attention"),
}


@dataclass(frozen=True, slots=True)
class Launch:
    name: str
    start_us: float
    duration_us: float

    @property
    def kind(self) -> str:
        name = self.name.lower()
        return next(
            (kind for kind, parts in KINDS.items() if any(p in name for p in parts)), "small"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, default="none")
    arguments = parser.parse_args()
    for kind in (CudaRunner, TritonRunner) if arguments.device == "cpu" else (CudaRunner,):
        for step, count in operations_a_layer(kind, arguments.quantization).items():
            print(f"{kind.__name__}: {count} operations a layer in a step of {step}")
    runner = loaded(SHAPES[arguments.shape], arguments.device, quantization=arguments.quantization)
    runner.warm_up()
    if arguments.device == "cuda":
        more_bytes = torch.cuda.memory_reserved() - runner.footprint.total_bytes
        print(
            f"{more_bytes / 2**20:.0f} MiB besides weights and cache, of {SPARE_BYTES / 2**20:.0f}"
        )
    print(report(launches(runner, arguments.device), SHAPES[arguments.shape].layers))


class TritonRunner(CudaRunner):
    """With operations by Triton on the CPU too, where its interpreter runs."""

    def _decoder(self, make: Callable[[Operations], Decoder], rope: Rope) -> Decoder:
        from inference_api.engine.cuda.triton_ops import TritonOps

        return make(TritonOps(self._config, self._cache, rope))


def loaded(
    shape: Shape,
    device: str,
    max_seq_len: int = 2 * CONTEXT_TOKENS,
    dtype: str = "auto",
    kind: type[CudaRunner] = CudaRunner,
    quantization: str = "none",
    experts_on_cpu: int = 0,
) -> CudaRunner:
    """A model of random weights."""
    with TemporaryDirectory() as folder:
        make_random_model(shape, Path(folder))
        options = EngineOptions(
            device=device,
            dtype=dtype,
            max_rows=32,
            max_seq_len=max_seq_len,
            quantization=quantization,
            experts_on_cpu=experts_on_cpu,
        )
        runner = kind(Path(folder), options)
        runner.load()
    return runner


class _Operations(TorchDispatchMode):
    """Counts those that write something, and launches by Triton."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = [each.alias_info for each in func._schema.returns]
        is_work = "empty" not in func._schema.name
        self.count += is_work and all(alias is None or alias.is_write for alias in made)
        return func(*args, **(kwargs or {}))

    @contextmanager
    def of_triton(self) -> Iterator[None]:
        """Counts launches, and nothing that its interpreter does for one."""
        from inference_api.engine.cuda.triton_kernels import gate

        run = type(gate).run

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            with _disable_current_modes(), np.errstate(all="ignore"):
                return run(*args, **kwargs)

        with patch.object(type(gate), "run", counted):
            yield


@torch.inference_mode()
def operations_a_layer(
    kind: type[CudaRunner] = CudaRunner,
    quantization: str = "none",
    steps: Iterable[str] = tuple(STEPS_OF),
) -> dict[str, int]:
    """What one layer more adds to a step, by what the step has."""
    counts: dict[str, list[int]] = {step: [] for step in steps}
    for layers in (1, 2):
        shape = replace(SHAPES["tiny"], layers=layers)
        runner = loaded(shape, "cpu", dtype="float32", kind=kind, quantization=quantization)
        for step in counts:
            row = STEPS_OF[step]
            with _Operations() as operations, ExitStack() as stack:
                if kind is TritonRunner:
                    stack.enter_context(operations.of_triton())
                runner.decoder.forward([row])
            counts[step].append(operations.count)
    return {step: two - one for step, (one, two) in counts.items()}


@torch.inference_mode()
def launches(runner: CudaRunner, device: str) -> list[Launch]:
    """Of STEPS steps, in the order of their starts."""
    row = STEPS_OF["one token"]
    runner.decoder.forward([row])
    wants = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[wants]) as profiled:
        for _ in range(STEPS):
            runner.decoder.forward([row])
        if device == "cuda":
            torch.cuda.synchronize()
    events = profiled.events() or []
    own = [
        Launch(each.name, each.time_range.start, each.time_range.elapsed_us())
        for each in events
        if (each.cpu_parent is None if device == "cpu" else str(each.device_type).endswith("CUDA"))
    ]
    return sorted(own, key=lambda launch: launch.start_us)


def report(found: list[Launch], layers: int) -> str:
    """A text of what one step took."""
    time_us: defaultdict[str, float] = defaultdict(float)
    by_kind: defaultdict[str, float] = defaultdict(float)
    for each in found:
        time_us[each.name] += each.duration_us
        by_kind[each.kind] += each.duration_us
    span_us = found[-1].start_us + found[-1].duration_us - found[0].start_us
    lines = [f"{len(found) / STEPS / layers:.1f} launches a layer, {span_us / STEPS:.0f} us a step"]
    lines += [f"{kind}: {total / STEPS:.0f} us" for kind, total in _longest(by_kind)]
    lines += [f"{total / STEPS:8.1f} us  {name[:100]}" for name, total in _longest(time_us)[:SHOWN]]
    return "\n".join(lines)


def _longest(times_us: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(times_us.items(), key=lambda item: -item[1])


if __name__ == "__main__":
    main()
