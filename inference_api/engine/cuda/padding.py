"""The number of rows to pad steps to, so that a row's bits do not depend on its company.

Matrix libraries add a row's products in an order that depends on the number of rows, and each does
it in its own way on each processor: with some every multiple of 4 gives the same bits, with others
every number from 16 on. So it is measured, on the model's own weights.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows it by)
from torch import Tensor


def least_rows_multiple(weights: Sequence[Tensor], max_rows: int) -> int:
    """Returns the least power of two m whose multiples, as batch sizes, give a row equal bits.

    `weights` are [outputs, inputs], one of each shape that the model multiplies by. Where no power
    below `max_rows` will do, returns one that is not: every step is then padded to it.
    """
    multiple = 1
    while multiple < max_rows and not _is_enough(multiple, weights, max_rows):
        multiple *= 2
    return multiple


def _is_enough(multiple: int, weights: Sequence[Tensor], max_rows: int) -> bool:
    most_rows = max_rows + -max_rows % multiple
    generator = torch.Generator().manual_seed(0)
    for weight in weights:
        x = torch.randn(most_rows, weight.shape[1], generator=generator).to(weight)
        expected = F.linear(x, weight)
        for num_rows in range(multiple, most_rows, multiple):
            if not torch.equal(F.linear(x[:num_rows], weight), expected[:num_rows]):
                return False
    return True
