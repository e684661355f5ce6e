"""What it takes to leave a mixture's experts to the CPU, beside all of them on the card.

Exits with 1 where logits differ by more than rounding. Random weights, in int4.
"""

import argparse
import sys
import time
from statistics import median

import torch
from torch import Tensor

from inference_api.engine.cuda.runner import CudaRunner
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from lab.device.launches import CONTEXT_TOKENS, loaded
from lab.models.random_model import Shape

SHAPES = {  # Qwen3-30B-A3B's layers, with a quarter of the experts, and tiny ones
    "30b": Shape(2048, 768, 4, 32, 4, head_dim=128, num_experts=32, experts_per_token=8),
    "tiny": Shape(64, 32, 2, 2, 2, vocab_size=512, num_experts=8, experts_per_token=2),
}
ROWS, TIMES = (1, 8), 20
LEAST_LIKENESS = 0.99
DRAW = Draw(SamplingParams(temperature=0.0), (), ())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    shape, found = SHAPES[arguments.shape], []
    for experts in (0, 1, shape.layers):
        runner = loaded(
            shape, arguments.device, dtype="bfloat16", quantization="int4", experts_on_cpu=experts
        )
        logits, times = _measured(runner)
        found.append(logits)
        print(f"experts of {experts} layers on the CPU: {times} a step", flush=True)
    likeness = min(float(torch.cosine_similarity(each, found[0], -1).min()) for each in found)
    print(f"logits are alike by {likeness:.4f}")
    return 0 if likeness >= LEAST_LIKENESS else 1


@torch.inference_mode()
def _measured(runner: CudaRunner) -> tuple[Tensor, str]:
    """Logits of a row's token, and a text of what a step of some rows takes."""
    for row in range(max(ROWS)):
        runner.decoder.forward([RowStep(row, 0, range(CONTEXT_TOKENS))])
    logits, texts = torch.empty(0), []
    for count in ROWS:
        rows = [RowStep(row, CONTEXT_TOKENS, (7,), (DRAW,)) for row in range(count)]
        times = []
        for _ in range(TIMES):
            began_s = time.perf_counter()
            logits = runner.decoder.forward(rows).logits.cpu()
            times.append(time.perf_counter() - began_s)
        texts.append(f"{count} rows {1e3 * median(times):.2f} ms")
    return logits, ", ".join(texts)


if __name__ == "__main__":
    sys.exit(main())
