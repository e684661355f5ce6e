"""Measures steps on a GPU: recorded as graphs, launched, and by transformers: `make bench-cuda`.

Steps decode one token of each row, verify a draft of several tokens, or read prompts in the chunks
of a server. `recorded` launches a step as one CUDA graph; `launched` launches its operations one by
one. The peer is transformers' model with its default cache, called with the same rows and contexts.
A step must read every weight and its rows' contexts. Its floor is their bytes over the memory's
bandwidth, which is measured by copies in the same run. Times are on the host, until the device has
finished. Needs a CUDA device with nothing else running on it.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarking.machine import describe_machine
from inference_api.engine.cuda.runner import CudaRunner
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from lab.benches.engine.step import (
    CONTEXT_TOKENS,
    LONG_TOKENS,
    MIN_WINDOWS,
    MODELS,
    PREFILL_TOKENS,
    ROWS,
    SHORT_TOKENS,
    linear_bytes,
)
from lab.models.random_model import SHAPES, Shape, make_random_model

LLAMA_8B = Shape(hidden=4096, ffn=14336, layers=32, heads=32, kv_heads=8, vocab_size=128_256)
MODEL_SHAPES = SHAPES | {"8b": LLAMA_8B}  # the shape of Llama 3.1 8B
COPIED_BYTES = 4 * 2**30
TOKEN_ID = 7
DRAW = Draw(SamplingParams(), (), ())


@dataclass(frozen=True, slots=True)
class Case:
    """A step of rows with `tokens` each, all but one drafted, at the end of their contexts."""

    rows: int
    tokens: int
    context_tokens: int


CASES = [
    *(Case(rows, 1, SHORT_TOKENS) for rows in ROWS),
    Case(max(ROWS), 1, LONG_TOKENS),
    Case(1, 9, SHORT_TOKENS),
    Case(8, 4, SHORT_TOKENS),
    Case(1, 9, LONG_TOKENS),
]
PROMPTS_TOKENS = (64, PREFILL_TOKENS)
CHUNK_TOKENS = CudaRunner.chunk_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODEL_SHAPES, default=["1.1b", "8b"])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="none")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device; `make bench-step` times steps on the CPU")
    print(describe_machine("torch", "transformers"))
    read_per_s = memory_bytes_per_s(arguments.seconds)
    print(f"Copies within the device read and write {read_per_s / 1e9:.0f} GB/s. Times in ms.")
    print(
        "| model | rows | tokens | context | recorded | launched | transformers | floor | "
        "recorded ÷ floor |\n|---|---|---|---|---|---|---|---|---|"
    )
    for model in arguments.models:
        for line in lines(model, read_per_s, arguments.seconds, arguments.quantization):
            print(line, flush=True)


@torch.inference_mode()
def lines(
    model: str, read_per_s: float, budget_s: float, quantization: str = "none"
) -> Iterator[str]:
    """Yields the table's lines, one for each case and each prompt."""
    folder = MODELS / f"random-{model}"
    if not (folder / "model.safetensors").exists():
        make_random_model(MODEL_SHAPES[model], folder)
    options = EngineOptions(
        device="cuda",
        max_rows=max(ROWS),
        max_seq_len=CONTEXT_TOKENS,
        quantization=quantization,
    )
    runner = CudaRunner(folder, options)
    runner.load()
    launched = times_s(runner, budget_s)
    runner.warm_up()  # records the steps
    recorded = times_s(runner, budget_s)
    cache_bytes_per_token = runner.footprint.cache_bytes_per_row / CONTEXT_TOKENS
    peer = Transformers(folder)
    weights_bytes = linear_bytes(folder, "bfloat16" if quantization == "none" else quantization)
    for case in CASES:
        cache_bytes = case.rows * case.context_tokens * cache_bytes_per_token
        floor_s = (weights_bytes + cache_bytes) / read_per_s
        yield (
            f"| {model} | {case.rows} | {case.tokens} | {case.context_tokens} | "
            f"{recorded[case] * 1e3:.2f} | {launched[case] * 1e3:.2f} | "
            f"{peer.decode_s(case, budget_s) * 1e3:.2f} | {floor_s * 1e3:.2f} | "
            f"{recorded[case] / floor_s:.2f} |"
        )
    for tokens in PROMPTS_TOKENS:
        peer_s = peer.prefill_s(tokens, budget_s)
        yield (
            f"| {model} | prompt | {tokens} | | {recorded[tokens] * 1e3:.2f} | "
            f"{launched[tokens] * 1e3:.2f} | {peer_s * 1e3:.2f} | | |"
        )


def times_s(runner: CudaRunner, budget_s: float) -> dict[Case | int, float]:
    """Returns the time of each case, and of prompts by length."""
    times: dict[Case | int, float] = {
        case: median_s(decode(runner, case), budget_s) for case in CASES
    }
    return times | {
        tokens: median_s(prefill(runner, tokens), budget_s) for tokens in PROMPTS_TOKENS
    }


def decode(runner: CudaRunner, case: Case) -> Callable[[], object]:
    start = case.context_tokens - case.tokens
    token_ids, draws = (TOKEN_ID,) * case.tokens, (DRAW,) * case.tokens
    rows = [RowStep(row, start, token_ids, draws) for row in range(case.rows)]
    return lambda: runner.decoder.forward(rows)


def prefill(runner: CudaRunner, num_tokens: int) -> Callable[[], object]:
    """Returns a function that reads a prompt in chunks, then its last token, which draws."""
    chunks = [
        [RowStep(0, start, [TOKEN_ID] * min(CHUNK_TOKENS, num_tokens - 1 - start))]
        for start in range(0, num_tokens - 1, CHUNK_TOKENS)
    ]
    chunks.append([RowStep(0, num_tokens - 1, [TOKEN_ID], (DRAW,))])
    return lambda: [runner.decoder.forward(chunk) for chunk in chunks]


class Transformers:
    """The model run by transformers alone, in the same precision."""

    def __init__(self, folder: Path) -> None:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._model = model.to("cuda")

    def decode_s(self, case: Case, budget_s: float) -> float:
        cache, num_held = DynamicCache(), case.context_tokens - case.tokens
        self._forward(case.rows, num_held, cache)
        return median_s(
            lambda: self._forward(case.rows, case.tokens, cache, case.tokens),
            budget_s,
            lambda: cache.crop(-case.tokens),
        )

    def prefill_s(self, num_tokens: int, budget_s: float) -> float:
        return median_s(lambda: self._forward(1, num_tokens, DynamicCache()), budget_s)

    def _forward(
        self, rows: int, num_tokens: int, cache: DynamicCache, num_draws: int = 1
    ) -> object:
        tokens = torch.full((rows, num_tokens), TOKEN_ID, device="cuda")
        return self._model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=num_draws)


def memory_bytes_per_s(budget_s: float) -> float:
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / median_s(lambda: target.copy_(source), budget_s)


def median_s(
    step: Callable[[], object], budget_s: float, after: Callable[[], object] = lambda: None
) -> float:
    """Returns the median seconds of a step, without the first step and calls of `after`."""
    step()
    after()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < MIN_WINDOWS or time.perf_counter() < end:
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        after()
    return median(times)
