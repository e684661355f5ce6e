"""`make bench-quality`: what quantised weights and a smaller KV cache cost in quality.

Teacher forced: every form of the model reads the same text, and at every position its prediction of
the next token is compared with the text (perplexity) and with float32's prediction: how far the
distribution is from it (Kullback-Leibler divergence, in nats) and whether the likeliest token is
the same (agreement). Perplexity can fall by luck when rounding makes a model less sure of itself;
the divergence cannot. Nothing is timed or drawn, so the figures are the same in every run on one
kind of processor.

GGUF's Q8_0 and Q4_0 round to the nearest value, by the `gguf` package; with QUANTIZATION=none their
numbers are multiplied in float32, which leaves the rounding of activations out.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn.functional import kl_div, nll_loss

from benchmarking.machine import describe_machine
from inference_api.engine.engine_runner import EngineRunner
from inference_api.engine.options import EngineOptions
from inference_api.engine.runner import Draw, RowStep
from inference_api.request import SamplingParams
from inference_api.settings import EMBEDDED_MODEL
from inference_api.text.tokens import load_tokenizer
from scripts.make_gguf import make_gguf

ROWS = 32
WINDOW_TOKENS = 256
FORMS = (  # type of the GGUF file or none for the safetensors, QUANTIZATION and KV_CACHE_DTYPE
    (None, "none", "float32"),
    (None, "none", "float16"),
    (None, "none", "int8"),
    (None, "int8", "float16"),
    (None, "int8", "int8"),
    (None, "int4", "float16"),
    (None, "int4", "int8"),
    ("Q8_0", "none", "float32"),
    ("Q8_0", "int8", "float16"),
    ("Q4_0", "none", "float32"),
    ("Q4_0", "int4", "float16"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Log probabilities of the text by one form of the model."""

    log_probabilities: Tensor  # [positions, vocabulary], in nats
    following: Tensor  # [positions], the token that the text has next

    @property
    def perplexity(self) -> float:
        return math.exp(nll_loss(self.log_probabilities, self.following).item())

    def standard_error(self, exact: "Reading") -> float:
        """Standard error of the difference of both mean losses, paired by position."""
        positions = range(len(self.following))
        differences = (self.log_probabilities - exact.log_probabilities)[positions, self.following]
        return (differences.std() / math.sqrt(len(positions))).item()

    def divergence(self, exact: "Reading") -> float:
        """Mean over positions of KL(exact || self)."""
        return kl_div(
            self.log_probabilities, exact.log_probabilities, log_target=True, reduction="batchmean"
        ).item()

    def agreement(self, exact: "Reading") -> float:
        guesses, exact_guesses = (r.log_probabilities.argmax(dim=-1) for r in (self, exact))
        return (guesses == exact_guesses).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what rounding costs in quality.")
    parser.add_argument("--model", type=Path, default=EMBEDDED_MODEL)
    parser.add_argument("--text", type=Path, default=EMBEDDED_MODEL / "heldout.txt")
    arguments = parser.parse_args()
    tokens = load_tokenizer(arguments.model, frozenset()).encode(arguments.text.read_text())
    print(describe_machine("torch", "gguf"))
    print(f"{arguments.text.name}: {len(tokens)} tokens in windows of {WINDOW_TOKENS}\n")
    print(
        "| weights | QUANTIZATION | KV_CACHE_DTYPE | perplexity | beside float32 | KL divergence "
        "| same greedy token |"
    )
    print("|---|---|---|---|---|---|---|")
    exact: Reading | None = None
    with TemporaryDirectory() as folder:
        for gguf_type, quantization, cache in FORMS:
            model = arguments.model
            if gguf_type is not None:
                model = Path(folder) / f"{gguf_type}.gguf"
                make_gguf(arguments.model, model, gguf_type)
            reading = read(model, quantization, cache, windows(tokens))
            exact = exact or reading
            print(
                f"| {gguf_type or 'safetensors'} | `{quantization}` | `{cache}` "
                f"| {reading.perplexity:.4f} "
                f"| {100 * (reading.perplexity / exact.perplexity - 1):+.2f} "
                f"± {100 * reading.standard_error(exact):.2f} % "
                f"| {reading.divergence(exact):.5f} "
                f"| {100 * reading.agreement(exact):.2f} % |",
                flush=True,
            )


def windows(tokens: Sequence[int]) -> list[Sequence[int]]:
    """The text after its first token (BOS), cut, with that token before every piece."""
    bos, text = tokens[0], tokens[1:]
    size = WINDOW_TOKENS - 1
    return [[bos, *text[first : first + size]] for first in range(0, len(text), size)]


def read(model: Path, quantization: str, cache: str, pieces: Sequence[Sequence[int]]) -> Reading:
    options = EngineOptions(
        device="cpu",
        dtype="float32",
        max_rows=ROWS,
        max_seq_len=WINDOW_TOKENS,
        quantization=quantization,
        kv_cache_dtype=cache,
    )
    runner = EngineRunner(model, options)
    runner.load()
    with torch.inference_mode():
        steps = [
            step
            for first in range(0, len(pieces), ROWS)
            for step in read_together(runner, pieces[first : first + ROWS])
        ]
    return Reading(*(torch.cat(parts) for parts in zip(*steps, strict=True)))


def read_together(
    runner: EngineRunner, pieces: Sequence[Sequence[int]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """One piece a row, one token a step: the fields of a Reading, step by step."""
    draw = Draw(SamplingParams(), (), ())
    for position in range(WINDOW_TOKENS - 1):
        rows = [row for row, piece in enumerate(pieces) if position + 1 < len(piece)]
        if not rows:
            return
        steps = [RowStep(row, position, (pieces[row][position],), (draw,)) for row in rows]
        logits = runner.decoder.forward(steps).logits
        following = torch.tensor([pieces[row][position + 1] for row in rows])
        yield logits.float().log_softmax(dim=-1), following


if __name__ == "__main__":
    main()
