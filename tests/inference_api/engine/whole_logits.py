"""Logits of every token of one prompt, by the kernels and by transformers."""

import random
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from inference_api.engine.kernel_runner import KernelRunner
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import Kernels
from inference_api.loading.options import EngineOptions
from inference_api.runner import RowStep, place_own_pages
from tests.inference_api.engine.steps import ANY_DRAW
from tests.inference_api.engine.tiny_models import CONTEXT, VOCAB_SIZE, transformers_model

ROWS, GUESSES = 4, 3
PROMPT = random.Random(7).choices(range(3, VOCAB_SIZE), k=77)


@cache
def runner_of(
    folder: Path,
    quantization: str = "none",
    variant: str | None = None,
    max_rows: int = ROWS,
) -> KernelRunner:
    options = EngineOptions(
        dtype="float32",
        max_rows=max_rows,
        max_seq_len=CONTEXT,
        quantization=quantization,
        num_guesses=GUESSES,
    )
    runner = KernelRunner(folder, options, lambda threads: Kernels(threads, variant))
    runner.load()
    place_own_pages(runner)
    return runner


def steps_of(row: int, tokens: Sequence[int], cuts: Iterable[int] = ()) -> list[RowStep]:
    """A prompt in chunks that end at `cuts`; all draw, so that there are logits of each token."""
    return [
        RowStep(row, start, tokens[start:end], [ANY_DRAW] * (end - start))
        for start, end in pairwise((0, *cuts, len(tokens)))
    ]


def logits_of(runner: KernelRunner, row: int, cuts: Iterable[int] = ()) -> Floats:
    steps = steps_of(row, PROMPT, cuts)
    return np.concatenate([runner.decoder.forward([step]).logits.copy() for step in steps])


@torch.inference_mode()
def expected_logits(name: str) -> Floats:
    logits: Floats = transformers_model(name)(torch.tensor([PROMPT])).logits[0].numpy()
    return logits
