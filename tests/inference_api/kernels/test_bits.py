"""Packed weights and products have the bits that `src/test_bits.h` lists, as its test driver says
of kernels that were built for other machines."""

import platform
import re
from collections.abc import Sequence
from functools import cache, reduce

import numpy as np
import pytest
from numpy.typing import NDArray

from inference_api.kernels.build import SOURCES
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import PORTABLE, Kernels, PackedWeight
from inference_api.kernels.packing import Bits

OUTPUTS, INPUTS, ROWS = 70, 1056, (1, 2, 7, 12, 41)
LISTED = re.compile(r"\{(\d+), (0x\w+), (0x\w+), (0x\w+), (0x\w+)\}")
HASHES = {
    int(bits): tuple(int(each, 16) for each in hashes)
    for bits, *hashes in LISTED.findall((SOURCES / "test_bits.h").read_text())
}


@cache
def numbers() -> tuple[Floats, Floats]:
    """The weights and the inputs, from the words of std::mt19937(1)."""
    words = [1]
    for index in range(1, 624):
        words.append((1_812_433_253 * (words[-1] ^ words[-1] >> 30) + index) & 0xFFFFFFFF)
    generator = np.random.MT19937()
    key = np.array(words, np.uint32)
    generator.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}

    def floats(rows: int) -> Floats:
        drawn = generator.random_raw(4 * rows * INPUTS).astype(np.int64) >> 8
        sums = drawn.reshape(-1, 4).sum(1) - (2 << 24)
        numbers: Floats = (sums / (1 << 24)).astype(np.float32)
        return numbers.reshape(rows, INPUTS)

    return floats(OUTPUTS), floats(max(ROWS))


def hash_of(parts: Sequence[NDArray[np.float32] | NDArray[np.uint8]]) -> int:
    """FNV-1a."""
    content = b"".join(part.tobytes() for part in parts)
    return reduce(
        lambda found, byte: (found ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF,
        content,
        0xCBF29CE484222325,
    )


@pytest.mark.parametrize("bits", HASHES)
def test_bits_are_those_that_are_listed(kernels: Kernels, bits: Bits) -> None:
    weights, x = numbers()
    packed = PackedWeight.empty(bits, OUTPUTS, INPUTS)
    kernels.pack(weights, packed)
    packed_hash, fused, unfused, in_tiles = HASHES[bits]
    assert hash_of([packed.blocks]) == packed_hash
    products = [kernels.linear(x[:rows], packed) for rows in ROWS]
    of_variant = {PORTABLE: unfused if platform.machine() == "x86_64" else fused, "amx": in_tiles}
    assert hash_of(products) == of_variant.get(kernels.variant, fused)
