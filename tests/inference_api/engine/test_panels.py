"""Packed matrices by torch have the numbers that the kernels packed."""

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_api.engine.cuda.panels import Panels, unpacked
from inference_api.engine.cuda.parameters import multiply, summed
from inference_api.kernels.library import Kernels, PackedWeight
from inference_api.kernels.packing import BITS, Bits
from tests.inference_api.engine.test_torch_ops import random

all_bits = pytest.mark.parametrize("bits", BITS.values())


def panels(outputs: int, inputs: int, bits: Bits, seed: int = 0) -> tuple[Panels, Tensor]:
    """Random weights as the kernels pack them, and what these are."""
    packed = PackedWeight.empty(bits, outputs, inputs)
    Kernels(1).pack(random(outputs, inputs, seed=seed).numpy(), packed)
    numbers = torch.from_numpy(packed.unpack())
    return Panels(torch.from_numpy(packed.blocks), bits, outputs, inputs), numbers


@all_bits
def test_numbers_are_those_that_the_kernels_unpack(bits: Bits) -> None:
    """Of outputs that do not fill their panels, and of any rows."""
    matrix, numbers = panels(75, 96, bits)
    assert torch.equal(unpacked(matrix), numbers)
    rows = torch.tensor([74, 0, 31, 32, 33])
    assert torch.equal(unpacked(matrix, rows), numbers[rows])


@all_bits
def test_parts_of_stacked_matrices_may_share_a_panel(bits: Bits) -> None:
    matrix, numbers = panels(3 * 40, 64, bits)
    parts = matrix.parts(3)
    assert [each.first for each in parts] == [0, 8, 16]
    for part, own in zip(parts, numbers.split(40), strict=True):
        assert torch.equal(unpacked(part), own)
        assert torch.equal(torch.cat([*map(unpacked, part.parts(2))]), own)


def test_weights_of_two_forms_are_one_product() -> None:
    (first, numbers), (last, others) = panels(40, 64, 4), panels(8, 64, 8)
    x, bias = random(3, 64, seed=1), random(48, seed=2)
    expected = x @ torch.cat((numbers, others)).T + bias
    torch.testing.assert_close(multiply(x, [first, last], bias), expected)


def test_parts_of_sums_are_added_in_their_order() -> None:
    parts = torch.tensor([[[1e8]], [[1.0]], [[-1e8]]])
    assert summed(parts, torch.float64) == np.float32(1e8) + np.float32(1) - np.float32(1e8)
    assert summed(parts, torch.float64).dtype == torch.float64
    assert torch.equal(summed(parts[0], torch.float32), parts[0])
