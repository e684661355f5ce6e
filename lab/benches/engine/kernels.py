"""Compares the kernels' matrix products with torch's, shape by shape, on one thread.

The figure is the least CPU time of the calling thread in many windows, over copies of the weights
that together exceed every cache. Other load on the machine disturbs this little. The shapes are the
linear layers of TinyLlama-1.1B.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)

from benchmarking.machine import describe_machine
from inference_api.kernels.build import compiled, units_here
from inference_api.kernels.library import Kernels, PackedWeight, supported_variants
from inference_api.kernels.packing import BITS, FLOAT_BITS

SHAPES = {  # name: (inputs, outputs)
    "out": (2048, 2048),
    "qkv": (2048, 2560),
    "gate-up": (2048, 11264),
    "down": (5632, 2048),
    "head": (2048, 32000),
}
ROWS = (1, 4, 8, 32, 128)
FORMS = BITS | FLOAT_BITS  # forms of weights by name
COPIES_BYTES = 640 * 2**20  # larger than the last-level cache even of large servers
MIN_WINDOWS = 5

Product = Callable[[torch.Tensor], object]


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to multiply by one weight matrix, whose copies take turns."""

    name: str
    weight_bytes: int
    copies: tuple[Product, ...]


def main() -> None:
    compiled(units_here())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--weights", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--variants", nargs="+", default=supported_variants())
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    arguments = parser.parse_args()
    print(describe_machine("torch"))
    print("one thread, CPU time of the fastest window")
    torch.set_num_threads(1)
    kernels = [Kernels(1, variant) for variant in arguments.variants]
    with torch.inference_mode():
        for shape in arguments.shapes:
            inputs, outputs = SHAPES[shape]
            print(f"\n{shape}: {inputs} x {outputs}")
            for contender in contenders(kernels, arguments.weights, inputs, outputs):
                print(f"  {contender.name:20}", end="")
                for rows in arguments.rows:
                    seconds = least_seconds(contender, rows, inputs, arguments.seconds)
                    gb_per_s = contender.weight_bytes / seconds / 1e9
                    gop_per_s = 2 * rows * inputs * outputs / seconds / 1e9
                    figures = f"{seconds * 1e3:8.3f} ms {gb_per_s:5.1f} GB/s {gop_per_s:5.0f} GOP/s"
                    print(f" | M={rows} {figures}", end="", flush=True)
                print()


def contenders(
    kernels: list[Kernels], forms: list[str], inputs: int, outputs: int
) -> Iterator[Contender]:
    """Yields contenders one by one, so that only one's copies of weights are in memory."""
    weight = torch.randn(outputs, inputs) / inputs**0.5
    for form in forms:
        bits = FORMS[form]
        packed = PackedWeight.empty(bits, outputs, inputs)
        kernels[0].pack(weight.numpy(), packed)
        size = packed.blocks.nbytes
        blocks = [packed.blocks.copy() for _ in range(num_copies(size))]
        copies = [PackedWeight(bits, outputs, inputs, copy) for copy in blocks]
        for each in kernels:
            products = tuple(product_of(each, copy) for copy in copies)
            yield Contender(f"{form} {each.variant}", size, products)
    for dtype in (getattr(torch, form) for form in forms if form in FLOAT_BITS):
        typed = weight.to(dtype)
        clones = [typed.clone() for _ in range(num_copies(typed.nbytes))]
        name = str(dtype).replace(".", " ")
        yield Contender(name, typed.nbytes, tuple(torch_product(clone) for clone in clones))


def product_of(kernels: Kernels, weight: PackedWeight) -> Product:
    return lambda x: kernels.linear(x.numpy(), weight)


def torch_product(weight: torch.Tensor) -> Product:
    return lambda x: F.linear(x.to(weight.dtype), weight)


def num_copies(size: int) -> int:
    return max(2, COPIES_BYTES // size + 1)


def least_seconds(contender: Contender, rows: int, inputs: int, budget_s: float) -> float:
    """Returns the CPU time of one product in the fastest window."""
    x = torch.randn(rows, inputs)
    end = time.monotonic() + budget_s
    least = float("inf")
    for window, product in enumerate(cycle(contender.copies)):
        began = time.thread_time()
        product(x)
        least = min(least, time.thread_time() - began)
        if window >= MIN_WINDOWS and time.monotonic() > end:
            return least
    raise AssertionError("cycle never ends")
