"""Compares drawing a step's tokens by torch and by the kernels, in turn: `make bench-draw`.

Logits are normal with a standard deviation of 3, flatter than most models', because many candidates
are the harder case. Nothing else may use the cores.
"""

import argparse
import time
from statistics import median

import torch
from torch import Tensor

from benchmarking.machine import describe_machine
from inference_api.engine import sampler
from inference_api.engine.cuda import sampler as torch_sampler
from inference_api.kernels.library import Kernels
from inference_api.loading import hardware
from inference_api.request import SamplingParams
from inference_api.runner import Draw

VOCABULARIES = (2_048, 32_000, 128_256)
ROWS = 32
SPREAD = 3.0
WAYS = {
    "temperature 1": SamplingParams(),
    "top_p 0.9": SamplingParams(top_p=0.9),
    "top_k 40, top_p 0.9": SamplingParams(top_k=40, top_p=0.9),
    "temperature 1, log probabilities": SamplingParams(num_logprobs=5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the drawing of tokens.")
    parser.add_argument("--times", type=int, default=20, help="alternations")
    times = parser.parse_args().times
    torch.set_num_threads(1)  # the kernels' sampler, too, uses one thread except for draws
    kernels = Kernels(hardware.physical_cores())
    print(f"{describe_machine('torch')}; {kernels.variant}\n")
    print(f"| vocabulary | {ROWS} rows draw by | torch ms | kernels ms | ratio |")
    print("|---|---|---|---|---|")
    for vocab in VOCABULARIES:
        logits = SPREAD * torch.randn(ROWS, vocab)
        for name, params in WAYS.items():
            draws = [Draw(params, (), ())] * ROWS
            pairs = [
                (draw_ms(logits, draws, None), draw_ms(logits, draws, kernels))
                for _ in range(times)
            ]
            by_torch, by_kernels = (median(each) for each in zip(*pairs, strict=True))
            ratio = median(first / second for first, second in pairs)
            print(f"| {vocab} | {name} | {by_torch:.2f} | {by_kernels:.2f} | {ratio:.1f} |")


def draw_ms(logits: Tensor, draws: list[Draw], kernels: Kernels | None) -> float:
    own = logits.clone()  # samplers overwrite logits
    began_s = time.perf_counter()
    if kernels is None:
        torch_sampler.sample(own, draws, range(ROWS))
    else:
        sampler.sample(own.numpy(), draws, range(ROWS), kernels)
    return 1000 * (time.perf_counter() - began_s)
