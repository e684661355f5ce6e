"""Whether a token has the same bits alone, in company and drafted, as is promised; and what else
has, as is not promised yet: prompts in steps of any size, and products of any number of tokens.

Exits with 1 where a promise is broken. Random weights, in bfloat16.
"""

import argparse
import random
import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor

from inference_api.engine.cuda.decoder import PROMPT_SIZES, Decoder
from inference_api.request import SamplingParams
from inference_api.runner import Draw, RowStep
from lab.device.launches import QUANTIZATIONS, loaded
from lab.device.products import product_shapes
from lab.models.random_model import SHAPES, Shape

ROWS, CONTEXT_TOKENS = 32, 1536
PROMPT_TOKENS, MOST_DRAFTED = max(PROMPT_SIZES), 8
PRODUCT_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
DRAW = Draw(SamplingParams(), (), ())
SEED = 20261129


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, default="none")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    shape, rng = SHAPES[arguments.shape], random.Random(SEED)
    how = {"dtype": "bfloat16", "quantization": arguments.quantization}
    runner = loaded(shape, arguments.device, CONTEXT_TOKENS, **how)
    if arguments.device == "cuda":
        runner.warm_up()
    with torch.inference_mode():
        broken = first_difference(runner.decoder, rng, shape.vocab_size, arguments.steps)
        print(f"tokens in company and drafted, beside each alone: {broken or 'equal'}")
        for line in prompt_lines(runner.decoder, rng, shape.vocab_size):
            print(line)
        for line in product_lines(shape, arguments.device):
            print(line)
    return 1 if broken else 0


def first_difference(
    decoder: Decoder, rng: random.Random, vocab_size: int, num_steps: int
) -> str | None:
    for row in range(ROWS):
        decoder.forward([RowStep(row, 0, rng.choices(range(vocab_size), k=CONTEXT_TOKENS))])
    for _ in range(num_steps):
        steps = []
        for row in rng.sample(range(ROWS), rng.randrange(1, ROWS + 1)):
            token_ids = rng.choices(range(vocab_size), k=rng.choice((1, MOST_DRAFTED)))
            start = rng.randrange(CONTEXT_TOKENS - len(token_ids))
            steps.append(RowStep(row, start, token_ids, (DRAW,) * len(token_ids)))
        together = iter(decoder.forward(steps).logits)
        for step in steps:
            for place, token_id in enumerate(step.token_ids):
                one = RowStep(step.row, step.start + place, (token_id,), (DRAW,))
                difference = differs(next(together), decoder.forward([one]).logits[0])
                if difference:
                    tokens = sum(len(each.token_ids) for each in steps)
                    return f"{difference} at {one.start}, beside {tokens - 1} others"
    return None


def prompt_lines(decoder: Decoder, rng: random.Random, vocab_size: int) -> Iterator[str]:
    """The states of one prompt, by how many tokens were computed at once."""
    prompt = rng.choices(range(vocab_size), k=PROMPT_TOKENS)

    def states(size: int) -> Tensor:
        chunks = [
            RowStep(0, start, prompt[start : start + size], wants_hidden=True)
            for start in range(0, PROMPT_TOKENS, size)
        ]
        found = [decoder.forward([chunk]).hidden[0] for chunk in chunks]
        return torch.cat([each for each in found if each is not None])

    whole = states(PROMPT_TOKENS)
    for size in PROMPT_SIZES:
        difference = differs(states(size), whole)
        yield f"prompts, {size} tokens at once beside {PROMPT_TOKENS}: {difference or 'equal'}"


def product_lines(shape: Shape, device: str) -> Iterator[str]:
    """Products by numbers of tokens and by places, beside those of as many as there are rows."""
    generator = torch.Generator(device).manual_seed(SEED)
    for name, (inputs, outputs) in product_shapes(shape).items():
        weight, x = (
            torch.randn(count, inputs, generator=generator, device=device, dtype=torch.bfloat16)
            for count in (outputs, max(PRODUCT_TOKENS))
        )
        whole = F.linear(x[:ROWS], weight)
        equal = [
            count
            for count in PRODUCT_TOKENS
            if torch.equal(F.linear(x[:count], weight)[:ROWS], whole[:count])
        ]
        places = sum(
            torch.equal(F.linear(x[:ROWS].roll(by, 0), weight).roll(-by, 0), whole)
            for by in range(ROWS)
        )
        yield (
            f"product {name}, {inputs} x {outputs}: equal at {places} of {ROWS} places; with "
            f"{', '.join(map(str, equal))} tokens as with {ROWS}"
        )


def differs(actual: Tensor, expected: Tensor) -> str | None:
    """By how much at most, of the largest; None where all bits are equal."""
    if torch.equal(actual, expected):
        return None
    return f"off by {(actual - expected).abs().max() / expected.abs().max():.1e} of the largest"


if __name__ == "__main__":
    sys.exit(main())
