"""Compares the kernels' steps with the limits of memory and processor: `make bench-step`.

A step of one row reads every weight once, so its floor is the bytes of the weights over the
bandwidth. The bandwidth of a virtual machine changes from second to second, so it is measured in
turn with the steps: all threads read a block of memory larger than the caches, which also evicts
the weights. Steps of many rows and prefill multiply each weight often. Their floor is the rate of
products with all operands in registers, also measured in turn. Attention's products do not count.
Nothing else may use the cores.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarking.machine import describe_machine
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.kernels.packing import BITS, CACHE_DTYPES, FLOAT_BITS, packed_bytes
from inference_api.loading import hardware
from inference_api.loading.checkpoint import load_config
from inference_api.loading.layout import HEAD, linear_weights, parameter_shape
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, place_own_pages
from lab.kernels.peak import WITH_SCALES, Peak
from lab.kit.servers import ROOT
from lab.models.random_model import SHAPES, make_random_model

MODELS = ROOT / "var" / "models"
RESULTS = ROOT / "var" / "bench" / "step.json"
STREAM_BYTES = 2 * 2**30
ROWS = (1, 8, 32)
SHORT_TOKENS, LONG_TOKENS = 128, 1500  # in a row's cache
PREFILL_TOKENS = 1024
CONTEXT_TOKENS = 1536
MIN_WINDOWS = 5
FORMS = FLOAT_BITS | BITS  # forms of weights by name
COLUMNS = (
    "| model | weights | rows | context | ms, median (least) | tokens/s | GB/s | of stream "
    "| Gop/s | of peak |"
)


class Stream:
    """Memory larger than the caches, read by threads that sleep in between. torch's own threads
    would spin for a while on the cores that the kernels need next."""

    def __init__(self, num_threads: int) -> None:
        torch.set_num_threads(1)  # one for each of our threads
        self._parts = torch.ones(STREAM_BYTES // 4).chunk(num_threads)
        self._threads = ThreadPoolExecutor(num_threads)

    def read(self) -> None:
        list(self._threads.map(torch.Tensor.sum, self._parts))


@dataclass(frozen=True, slots=True)
class Result:
    """The measurement of a step. Seconds are per step."""

    model: str
    weights: str  # form of the weights
    rows: int
    context_tokens: int
    tokens: int  # computed in the step
    least_s: float
    median_s: float
    weight_bytes: int  # read in the step
    stream_s: float | None  # median time to read STREAM_BYTES, in turn with the step
    operations: int  # multiplications by weights, and additions
    peak_per_s: float | None  # median operations/s of `Peak`, in turn with the step

    @property
    def weights_gb_per_s(self) -> float:
        return self.weight_bytes / self.median_s / 1e9

    @property
    def operations_per_s(self) -> float:
        return self.operations / self.median_s

    @property
    def stream_gb_per_s(self) -> float | None:
        return None if self.stream_s is None else STREAM_BYTES / self.stream_s / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--weights", nargs="+", choices=FORMS, default=list(BITS))
    parser.add_argument("--file", type=Path, help="a GGUF model instead: as it is, and in int8")
    parser.add_argument("--kv-cache-dtype", choices=("auto", *CACHE_DTYPES), default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    arguments = parser.parse_args()
    print(describe_machine("torch"))
    stream = Stream(hardware.physical_cores())
    print_share_of_groups(arguments.seconds)
    print(COLUMNS)
    print("|---" * COLUMNS.count(" | ") + "|---|")
    results = []
    for path, form in cases(arguments):
        for result in measure(path, form, stream, arguments):
            results.append(result)
            print(line(result), flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    figures = [asdict(result) for result in results]
    RESULTS.write_text(json.dumps({"machine": describe_machine("torch"), "steps": figures}))


def print_share_of_groups(budget_s: float) -> None:
    """Prints the share of the int8 peak that scales of groups leave, if it can be measured."""
    peaks = [Peak(form, hardware.physical_cores()) for form in ("int8", WITH_SCALES)]
    if not peaks[1].multiply():
        return
    alone_s, scaled_s = map(median, seconds([peak.multiply for peak in peaks], budget_s))
    share = peaks[1].multiply() / scaled_s / (peaks[0].multiply() / alone_s)
    print(f"int8 with a scale for each group of 32 inputs: {share:.0%} of the peak\n")


def cases(arguments: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """Yields models with the forms of their weights."""
    if arguments.file is not None:
        yield from ((arguments.file, form) for form in ("file", "int8"))
        return
    for model in arguments.models:
        folder = MODELS / f"random-{model}"
        if not (folder / "model.safetensors").exists():
            make_random_model(SHAPES[model], folder)
        yield from ((folder, form) for form in arguments.weights)


def line(result: Result) -> str:
    stream_gb_per_s, share, of_peak = result.stream_gb_per_s, "", ""
    if stream_gb_per_s is not None:
        share = f"{result.weights_gb_per_s / stream_gb_per_s:.0%} of {stream_gb_per_s:.1f}"
    if result.peak_per_s:
        part = result.operations_per_s / result.peak_per_s
        of_peak = f"{part:.0%} of {result.peak_per_s / 1e9:.0f}"
    return (
        f"| {result.model} | {result.weights} | "
        f"{'prefill' if result.tokens > result.rows else result.rows} | {result.context_tokens} | "
        f"{result.median_s * 1e3:.2f} ({result.least_s * 1e3:.2f}) | "
        f"{result.tokens / result.median_s:.0f} | {result.weights_gb_per_s:.1f} | {share} | "
        f"{result.operations_per_s / 1e9:.0f} | {of_peak} |"
    )


def measure(
    path: Path, form: str, stream: Stream, arguments: argparse.Namespace
) -> Iterator[Result]:
    model = path.name.removeprefix("random-").removesuffix(".gguf")
    dtype, quantization = (form, "none") if form in FLOAT_BITS else ("float32", form)
    options = EngineOptions(
        device="cpu",
        dtype=dtype,
        max_rows=max(ROWS),
        max_seq_len=CONTEXT_TOKENS,
        quantization=quantization,
        kv_cache_dtype=arguments.kv_cache_dtype,
    )
    runner = KernelRunner(path, options)
    runner.load()
    place_own_pages(runner)
    runner._cache.pages.fill(0)  # allocates the memory, which else is one shared page of zeros
    decoder = runner.decoder
    weights = linear_weights(decoder._config)  # a step reads all of these
    weight_bytes = sum(len(decoder._packed[name].blocks) for name in weights)
    sizes = {name: math.prod(parameter_shape(parts)) for name, parts in weights.items()}
    head_size = sizes.pop(HEAD)  # multiplies only tokens that draw
    peak = Peak(form, hardware.physical_cores())
    draw = Draw(SamplingParams(), (), ())

    def result(rows: int, context_tokens: int, tokens: int, step: Callable[[], object]) -> Result:
        times, other_times = seconds(
            [step, stream.read if tokens == 1 else peak.multiply], arguments.seconds
        )
        other_s = median(other_times)
        return Result(
            model,
            form,
            rows,
            context_tokens,
            tokens,
            min(times),
            median(times),
            weight_bytes,
            other_s if tokens == 1 else None,
            2 * (tokens * sum(sizes.values()) + rows * head_size),
            None if tokens == 1 else peak.multiply() / other_s,
        )

    def decode(rows: int, context_tokens: int) -> Result:
        steps = [RowStep(row, context_tokens - 1, (7,), (draw,)) for row in range(rows)]
        return result(rows, context_tokens, rows, lambda: decoder.forward(steps))

    for rows in ROWS:
        yield decode(rows, SHORT_TOKENS)
    yield decode(max(ROWS), LONG_TOKENS)
    prompt = [RowStep(0, 0, [7] * PREFILL_TOKENS, (draw,))]
    yield result(1, PREFILL_TOKENS, PREFILL_TOKENS, lambda: decoder.forward(prompt))


def linear_bytes(folder: Path, form: str) -> int:
    """Returns the bytes of the packed weights, all of which a step of one row reads."""
    plan = linear_weights(load_config(folder))
    shapes = (parameter_shape(parts) for parts in plan.values())
    return sum(packed_bytes(FORMS[form], *shape) for shape in shapes)


def seconds(steps: Sequence[Callable[[], object]], budget_s: float) -> list[list[float]]:
    """Runs steps in turn. Returns the wall times of each step, without the first round."""
    for step in steps:
        step()
    times: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + budget_s
    while len(times[0]) < MIN_WINDOWS or time.perf_counter() < end:
        for step, of_step in zip(steps, times, strict=True):
            began = time.perf_counter()
            step()
            of_step.append(time.perf_counter() - began)
    return times
