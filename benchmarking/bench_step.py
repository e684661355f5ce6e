"""`make bench-step`: how close a decode step of the kernels comes to what the memory can deliver.

A step of one row reads every weight once, so its floor is the bytes of the weights over the
bandwidth, which is measured in the same run: all threads read a block of memory larger than the
caches. Beside it steps of many rows, of rows with a long context, and prefill. Time it alone:
nothing else may use the cores.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarking.machine import describe_machine
from inference_api.engine import hardware
from inference_api.engine.checkpoint import load_config
from inference_api.engine.kernel_decoder import KernelDecoder
from inference_api.engine.layout import linear_weights, parameter_shape
from inference_api.engine.torch_runner import TorchRunner
from inference_api.kernels.packing import BITS, FLOAT_BITS, packed_bytes
from scripts.make_random_model import SHAPES, make_random_model

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "var" / "models"
RESULTS = ROOT / "var" / "bench" / "step.json"
STREAM_BYTES = 2 * 2**30
ROWS = (1, 8, 32)
SHORT_TOKENS, LONG_TOKENS = 128, 1500  # in a row's cache
PREFILL_TOKENS = 1024
CONTEXT_TOKENS = 1536
MIN_WINDOWS = 5
FORMS = FLOAT_BITS | BITS  # of weights, by name


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds are of one step."""

    model: str
    weights: str  # their form
    rows: int
    context_tokens: int
    tokens: int  # computed in the step
    least_s: float
    median_s: float
    weight_bytes: int  # read in the step

    @property
    def weights_gb_per_s(self) -> float:
        return self.weight_bytes / self.least_s / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--weights", nargs="+", choices=FORMS, default=list(BITS))
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    arguments = parser.parse_args()
    print(describe_machine("torch"))
    bandwidth = stream_bytes_per_s(arguments.seconds)
    print(f"stream read: {bandwidth / 1e9:.1f} GB/s on {hardware.physical_cores()} threads\n")
    print("| model | weights | rows | context | ms, least (median) | tokens/s | GB/s | of stream |")
    print("|---|---|---|---|---|---|---|---|")
    results = []
    for model in arguments.models:
        for form in arguments.weights:
            for result in measure(model, form, arguments.seconds):
                results.append(result)
                print(line(result, bandwidth), flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    figures = [asdict(result) for result in results]
    machine = describe_machine("torch")
    RESULTS.write_text(
        json.dumps({"machine": machine, "stream_bytes_per_s": bandwidth, "steps": figures})
    )


def line(result: Result, bandwidth: float) -> str:
    share = f"{result.weights_gb_per_s * 1e9 / bandwidth:.0%}" if result.tokens == 1 else ""
    return (
        f"| {result.model} | {result.weights} | "
        f"{'prefill' if result.tokens > result.rows else result.rows} | {result.context_tokens} | "
        f"{result.least_s * 1e3:.2f} ({result.median_s * 1e3:.2f}) | "
        f"{result.tokens / result.least_s:.0f} | {result.weights_gb_per_s:.1f} | {share} |"
    )


def stream_bytes_per_s(budget_s: float) -> float:
    torch.set_num_threads(hardware.physical_cores())
    memory = torch.ones(STREAM_BYTES // 4)
    return STREAM_BYTES / min(seconds(memory.sum, budget_s))


@torch.inference_mode()
def measure(model: str, form: str, budget_s: float) -> Iterator[Result]:
    folder = MODELS / f"random-{model}"
    if not (folder / "model.safetensors").exists():
        make_random_model(SHAPES[model], folder)
    dtype, quantization = ("float32", form) if form in BITS else (form, "none")
    runner = TorchRunner(folder, "cpu", dtype, max(ROWS), CONTEXT_TOKENS, quantization)
    runner.load()
    decoder = runner.decoder
    assert isinstance(decoder, KernelDecoder), "there are no kernels: see python -m ...build"
    weight_bytes = linear_bytes(folder, form)

    def result(rows: int, context_tokens: int, tokens: int, step: Callable[[], object]) -> Result:
        times = seconds(step, budget_s)
        return Result(
            model,
            form,
            rows,
            context_tokens,
            tokens,
            min(times),
            median(times),
            weight_bytes,
        )

    def decode(rows: int, context_tokens: int) -> Result:
        arguments = ([7] * rows, range(rows), [context_tokens - 1] * rows, rows)
        return result(rows, context_tokens, rows, lambda: decoder.forward(*arguments))

    for rows in ROWS:
        yield decode(rows, SHORT_TOKENS)
    yield decode(max(ROWS), LONG_TOKENS)
    prompt = ([7] * PREFILL_TOKENS, [0] * PREFILL_TOKENS, range(PREFILL_TOKENS), 1)
    yield result(1, PREFILL_TOKENS, PREFILL_TOKENS, lambda: decoder.forward(*prompt))


def linear_bytes(folder: Path, form: str) -> int:
    """Of the packed weights, all of which a step of one row reads."""
    plan = linear_weights(load_config(folder))
    shapes = (parameter_shape(parts) for parts in plan.values())
    return sum(packed_bytes(FORMS[form], *shape) for shape in shapes)


def seconds(step: Callable[[], object], budget_s: float) -> list[float]:
    """Wall time of repeated steps, the first of which is not counted."""
    step()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < MIN_WINDOWS or time.perf_counter() < end:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main()
