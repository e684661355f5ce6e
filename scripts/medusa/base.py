"""The model that heads are trained for. It answers, and its output matrix initialises them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

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
from inference_api.text.tokens import HuggingFaceTokenizer, load_tokenizer

MAX_PROMPT_TOKENS = 512
USER_ROWS = 32


@dataclass(frozen=True, slots=True)
class Base:
    """A model, loaded to answer many prompts at once."""

    path: Path
    runner: LocalRunner
    tokenizer: HuggingFaceTokenizer

    @classmethod
    def load(cls, model: str, device: str, max_tokens: int, num_threads: int | None = None) -> Self:
        """Load the model for answers of `max_tokens`. On the CPU the int8 kernels run it, which are
        fastest, by default with as many threads as when it is served. Raises StartupError when the
        model cannot be served."""
        path = locate(model)
        max_seq_len = most_prompt_tokens(model, max_tokens) + max_tokens
        options = EngineOptions(
            device=device,
            max_rows=USER_ROWS,
            max_seq_len=max_seq_len,
            quantization=quantization_on(device),
        )
        runner = make_runner(path, options, lambda most: Kernels(num_threads or most))
        tokenizer = load_tokenizer(path, runner.eos_token_ids)
        runner.load()
        return cls(path, runner, tokenizer)


def quantization_on(device: str) -> str:
    """Returns the fastest runner of the device."""
    return "int8" if device == "cpu" else "none"


def most_prompt_tokens(model: str, max_tokens: int) -> int:
    """Returns the most tokens of a prompt that leave room for `max_tokens`."""
    return min(MAX_PROMPT_TOKENS, load_config(locate(model)).context(None) - max_tokens)


def output_matrix(path: Path) -> Tensor:
    """Returns the weight of the output head [vocab, hidden], float32, from a folder or GGUF file.
    It is divided as the model divides its logits, so that a product with it has their scale."""
    config = load_config(path)
    (part,) = linear_weights(config)[HEAD]
    matrix = np.empty(part.shape, np.float32)
    for _, weight in read_weights(weight_files(path), {part.name: part}, config):
        for first, rows in weight.rows():
            matrix[first : first + len(rows)] = rows
    return torch.from_numpy(matrix) / config.logits_divisor
