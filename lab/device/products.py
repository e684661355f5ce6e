"""Products of a step's tokens by kernels in Triton beside cuBLAS', for each weight of a model.

Exits with 1 where the kernel is too far from float64, or a token's bits depend on its place or on
how many there are. Times are of recorded launches over more weights than a card's cache holds.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
import triton
from torch import Tensor

from inference_api.engine.cuda.triton_ops import TritonOps
from inference_api.kernels.packing import BITS, Bits
from lab.benches.engine.cuda import MODEL_SHAPES
from lab.device.kernels import BOUNDS, SEED, random_panels, time_us
from lab.device.linear_kernel import multiply
from lab.models.random_model import Shape

TOKENS = 32
CACHE_BYTES = 256 * 2**20  # no card's is larger


class Form(NamedTuple):
    """Outputs and inputs that a program multiplies at once, and parts that inputs are cut into."""

    outputs: int
    inputs: int
    parts: int


FORMS = (Form(64, 128, 1), Form(128, 64, 1), Form(64, 128, 4), Form(32, 128, 8))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=MODEL_SHAPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    is_good, shapes = True, product_shapes(MODEL_SHAPES[arguments.shape])
    if arguments.device == "cpu":  # the interpreter takes long
        shapes = {"out": shapes["out"]}
    for name, (inputs, outputs) in shapes.items():
        x, weights = numbers(inputs, outputs, arguments.device)
        is_good &= all(is_right(x, weights[0], form) for form in FORMS)
        works = {"cuBLAS": [partial(F.linear, x, each) for each in weights]}
        for form in FORMS:
            works[str(tuple(form))] = [partial(by_triton, x, each, form) for each in weights]
        us = {of: time_us(each, arguments.device == "cuda") for of, each in works.items()}
        times = ", ".join(f"{of} {each:.1f} us" for of, each in us.items())
        gb_s = weights[0].nbytes / min(us.values()) / 1e3
        print(f"{name}, {inputs} x {outputs}: {times}; at best {gb_s:.0f} GB/s", flush=True)
        for bits in BITS.values():
            print(packed_times(x, outputs, bits), flush=True)
    return 0 if is_good else 1


def packed_times(x: Tensor, outputs: int, bits: Bits) -> str:
    """A text of products by packed weights, of one token and of all."""
    on_cuda, inputs = x.device.type == "cuda", x.shape[1]
    matrix = random_panels(outputs, inputs, bits, x.device)
    count = CACHE_BYTES // matrix.blocks.nbytes + 1 if on_cuda else 1
    weights = [[replace(matrix, blocks=matrix.blocks.clone())] for _ in range(count)]
    us = {
        len(some): time_us(
            [partial(TritonOps.multiply, some, each, None) for each in weights], on_cuda
        )
        for some in (x[:1], x)
    }
    times = ", ".join(f"{tokens} tokens {each:.1f} us" for tokens, each in us.items())
    gb_s = matrix.blocks.nbytes / min(us.values()) / 1e3
    return f"  in {bits} bits: {times}; at best {gb_s:.0f} GB/s"


def numbers(inputs: int, outputs: int, device: str) -> tuple[Tensor, list[Tensor]]:
    """A step's [TOKENS, inputs], and weights [outputs, inputs]."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(SEED)
    count = CACHE_BYTES // (inputs * outputs * dtype.itemsize) + 1 if device == "cuda" else 1
    x, *weights = (
        torch.randn(rows, inputs, generator=generator, device=device, dtype=dtype)
        for rows in (TOKENS, *[outputs] * count)
    )
    return x, weights


def is_right(x: Tensor, weight: Tensor, form: Form) -> bool:
    """Whether it is near float64, and a token's bits are its own: on a card, since the interpreter
    multiplies by numpy, whose BLAS may sum rows of one product in different orders."""
    exact, made = x.double() @ weight.double().T, by_triton(x, weight, form)
    error = (made.sum(0) - exact).abs().max() / exact.abs().max()
    rolled, alone = by_triton(x.roll(1, 0), weight, form), by_triton(x[:1], weight, form)
    has_own_bits = not x.is_cuda or (
        torch.equal(rolled.roll(-1, 1), made) and torch.equal(alone, made[:, :1])
    )
    if not (has_own_bits and error <= BOUNDS[x.dtype]):
        print(f"{tuple(form)} of {tuple(weight.shape)}: off by {error:.1e}, bits {has_own_bits}")
    return has_own_bits and bool(error <= BOUNDS[x.dtype])


def product_shapes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a model's products, by name."""
    head_outputs = shape.head_width * shape.heads
    return {
        "qkv": (shape.hidden, head_outputs + 2 * shape.head_width * shape.kv_heads),
        "out": (head_outputs, shape.hidden),
        "up": (shape.hidden, 2 * shape.ffn),
        "down": (shape.ffn, shape.hidden),
        "head": (shape.hidden, shape.vocab_size),
    }


def by_triton(x: Tensor, weight: Tensor, form: Form) -> Tensor:
    """[parts, n, outputs] float32"""
    (num_tokens, inputs), outputs = x.shape, len(weight)
    part_inputs = triton.cdiv(triton.cdiv(inputs, form.parts), form.inputs) * form.inputs
    out = x.new_empty(form.parts, num_tokens, outputs, dtype=torch.float32)
    grid = triton.cdiv(num_tokens, TOKENS), triton.cdiv(outputs, form.outputs), form.parts
    multiply[grid](
        x, weight, out, num_tokens, inputs, outputs, part_inputs, TOKENS, form.outputs, form.inputs
    )
    return out


if __name__ == "__main__":
    sys.exit(main())
