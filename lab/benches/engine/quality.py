"""Measures the loss of quality by quantised weights and a smaller KV cache: `make bench-quality`.

Every form of the model reads the same text (teacher forcing). At every position its prediction of
the next token is compared with the text (perplexity) and with float32's prediction: the distance of
the distributions (Kullback-Leibler divergence, in nats), and whether the likeliest token is equal
(agreement). Perplexity can fall by luck if rounding makes a model less certain; divergence cannot.
Nothing is timed or drawn at random, so the figures are the same in every run on one kind of
processor.

GGUF's Q8_0 and Q4_0 are rounded to the nearest value by the `gguf` package. With QUANTIZATION=none
they are multiplied in float32, without rounding of activations. The last forms are made by
`hearth quantize`, without and with another text for calibration.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from benchmarking.machine import describe_machine
from inference_api.engine.kernel_runner import KernelRunner
from inference_api.loading.gguf import is_gguf
from inference_api.loading.options import EngineOptions
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep, place_own_pages
from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.tokens import load_tokenizer
from lab.kit.servers import ROOT
from lab.models.gguf_file import make_gguf
from scripts.quantize.calibration import begin
from scripts.quantize.making import make

ROWS = 32
QUANTIZED, CALIBRATED = "hearth quantize", "hearth quantize --calibrate"
BFLOAT16 = "bfloat16"  # a DTYPE, not a QUANTIZATION; all others have DTYPE float32
FORMS = (  # GGUF type, None for safetensors; QUANTIZATION; KV_CACHE_DTYPE
    (None, "none", "float32"),
    (None, BFLOAT16, "float32"),
    (None, "none", "float16"),
    (None, "none", "int8"),
    (None, "none", "int4"),
    (None, "int8", "float16"),
    (None, "int8", "int8"),
    (None, "int8", "int4"),
    (None, "int4", "float16"),
    (None, "int4", "int8"),
    (None, "int4", "int4"),
    ("Q8_0", "none", "float32"),
    ("Q8_0", "int8", "float16"),
    ("Q4_0", "none", "float32"),
    ("Q4_0", "int4", "float16"),
    (QUANTIZED, "file", "float32"),
    (CALIBRATED, "none", "float32"),
    (CALIBRATED, "file", "float16"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The predictions of one form of the model compared with float32: each [positions], in nats."""

    losses: Tensor
    exact_losses: Tensor
    divergences: Tensor  # KL(float32 || this form)
    are_same: Tensor  # whether both have the same likeliest token

    def row(self, weights: str, quantization: str, cache: str) -> str:
        """Returns a row of the table. ± is a standard error, paired by position."""
        differences = self.losses - self.exact_losses
        error = differences.std().item() / math.sqrt(len(differences))
        return (
            f"| {weights} | `{quantization}` | `{cache}` "
            f"| {self.losses.mean().exp():.4f} "
            f"| {100 * differences.mean().expm1():+.2f} ± {100 * error:.2f} % "
            f"| {self.divergences.mean():.5f} "
            f"| {100 * self.are_same.double().mean():.2f} % |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what rounding costs in quality.")
    parser.add_argument("--model", type=Path, default=EMBEDDED_MODEL, help="folder or GGUF file")
    parser.add_argument("--text", type=Path, default=EMBEDDED_MODEL / "heldout.txt")
    parser.add_argument("--tokens", type=int, help="of the text's beginning; default: all")
    parser.add_argument(
        "--file", type=Path, action="append", help="a GGUF file of the model, instead of our forms"
    )
    parser.add_argument("--quantization", action="append", help="of our forms these alone")
    parser.add_argument("--cache", action="append", help="of our forms those with this cache")
    parser.add_argument("--window", type=int, default=256, help="tokens read at a time")
    parser.add_argument("--calibrate", type=Path, default=ROOT / "README.md", help="another text")
    arguments = parser.parse_args()
    window: int = arguments.window
    tokens = load_tokenizer(arguments.model, frozenset()).encode(arguments.text.read_text())
    tokens = tokens[: arguments.tokens]
    print(describe_machine("torch", "gguf"))
    print(f"{arguments.text.name}: {len(tokens)} tokens in windows of {window}\n")
    print(
        "| weights | QUANTIZATION | KV_CACHE_DTYPE | perplexity | beside float32 | KL divergence "
        "| same greedy token |"
    )
    print("|---|---|---|---|---|---|---|")
    exact = loaded(arguments.model, "none", "float32", window)
    with TemporaryDirectory() as folder:
        files = [
            (file, each, "float32") for file in arguments.file or () for each in ("none", "file")
        ]
        for gguf_type, quantization, cache in files or FORMS:
            model = arguments.model
            if not files and quantization not in (arguments.quantization or (quantization,)):
                continue
            if not files and cache not in (arguments.cache or (cache,)):
                continue
            if isinstance(gguf_type, Path):
                model = gguf_type
            elif gguf_type is not None:
                if is_gguf(model) and gguf_type not in (QUANTIZED, CALIBRATED):
                    continue
                model = _made(model, gguf_type, Path(folder), arguments.calibrate)
            form = loaded(model, quantization, cache, window)
            reading = read(exact, form, windows(tokens, window))
            print(reading.row(_named(gguf_type, model), quantization, cache), flush=True)


def _made(model: Path, form: str, folder: Path, text: Path) -> Path:
    """Returns a GGUF file in this form, made from a folder or another file."""
    file = folder / f"{form}.gguf"
    if file.exists():
        return file
    if form not in (QUANTIZED, CALIBRATED):
        make_gguf(model, file, form)
        return file
    source = model if is_gguf(model) else _made(model, "F32", folder, text)
    start = partial(begin, text.read_text()) if form == CALIBRATED else None
    make(source, file, start)
    return file


def _named(form: str | Path | None, model: Path) -> str:
    return form if isinstance(form, str) else model.name


def windows(tokens: Sequence[int], window: int) -> list[Sequence[int]]:
    """Cuts the text after its first token (BOS) into pieces, each with that token before it."""
    bos, text = tokens[0], tokens[1:]
    size = window - 1
    return [[bos, *text[first : first + size]] for first in range(0, len(text), size)]


def loaded(model: Path, quantization: str, cache: str, window: int) -> KernelRunner:
    options = EngineOptions(
        device="cpu",
        dtype=BFLOAT16 if quantization == BFLOAT16 else "float32",
        max_rows=ROWS,
        max_seq_len=window,
        quantization="none" if quantization == BFLOAT16 else quantization,
        kv_cache_dtype=cache,
    )
    runner = KernelRunner(model, options)
    runner.load()
    if (most := place_own_pages(runner)) < window:
        raise SystemExit(
            f"error: --window {window}: pages of {model.name} hold {most} tokens a row"
        )
    return runner


@torch.inference_mode()
def read(exact: KernelRunner, form: KernelRunner, pieces: Sequence[Sequence[int]]) -> Reading:
    """Compares two forms step by step, so that only one step's predictions are in memory."""
    steps = []
    for first in range(0, len(pieces), ROWS):
        some = pieces[first : first + ROWS]
        both = (read_together(runner, some) for runner in (exact, form))
        for (expected, following), (predicted, _) in zip(*both, strict=True):
            losses = [-each[range(len(following)), following] for each in (predicted, expected)]
            divergence = kl_div(predicted, expected, log_target=True, reduction="none").sum(-1)
            steps.append((*losses, divergence, predicted.argmax(-1) == expected.argmax(-1)))
    return Reading(*(torch.cat(parts) for parts in zip(*steps, strict=True)))


def read_together(
    runner: KernelRunner, pieces: Sequence[Sequence[int]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Reads one piece per row, one token per step. Yields for each step the log probabilities
    [rows, vocabulary] of the next token, and the next tokens."""
    draw = Draw(SamplingParams(), (), ())
    for position in range(max(map(len, pieces)) - 1):
        rows = [row for row, piece in enumerate(pieces) if position + 1 < len(piece)]
        steps = [RowStep(row, position, (pieces[row][position],), (draw,)) for row in rows]
        logits = runner.decoder.forward(steps).logits
        following = torch.tensor([pieces[row][position + 1] for row in rows])
        yield torch.from_numpy(logits).log_softmax(dim=-1), following
