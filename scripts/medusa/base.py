"""The model for which heads are trained. It answers, and its output matrix initialises heads."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inference_api.engine.devices import make_runner
from inference_api.engine.local_runner import LocalRunner
from inference_api.kernels.library import Kernels
from inference_api.loading.checkpoint import load_config, locate
from inference_api.loading.files import weight_files
from inference_api.loading.layout import HEAD, linear_weights
from inference_api.loading.options import EngineOptions
from inference_api.loading.stream import read_weights

MAX_PROMPT_TOKENS = 512
USER_ROWS = 32


def load_runner(
    model: str, device: str, max_tokens: int, num_threads: int | None = None
) -> LocalRunner:
    """Loads the model to answer many prompts at once, with `max_tokens` each. On the CPU it uses
    int8 weights, the fastest, and by default as many threads as when it is served. Raises
    StartupError if the model cannot be served."""
    options = EngineOptions(
        device=device,
        max_rows=USER_ROWS,
        max_seq_len=most_prompt_tokens(model, max_tokens) + max_tokens,
        quantization=quantization_on(device),
    )
    runner = make_runner(locate(model), options, lambda most: Kernels(num_threads or most))
    runner.load()
    return runner


def quantization_on(device: str) -> str:
    """Returns the fastest quantization on the device."""
    return "int8" if device == "cpu" else "none"


def most_prompt_tokens(model: str, max_tokens: int) -> int:
    """Returns the most tokens of a prompt that leaves room for `max_tokens` in the context."""
    return min(MAX_PROMPT_TOKENS, load_config(locate(model)).context(None) - max_tokens)


def output_matrix(path: Path) -> Tensor:
    """Returns the weight of the output head [vocab, hidden], float32, from a folder or GGUF file.
    If the model divides its logits, it is divided by the same, so that products are logits."""
    config = load_config(path)
    (part,) = linear_weights(config)[HEAD]
    matrix = np.empty(part.shape, np.float32)
    for _, weight in read_weights(weight_files(path), {part.name: part}, config):
        for first, rows in weight.rows():
            matrix[first : first + len(rows)] = rows
    return torch.from_numpy(matrix) / config.logits_divisor
