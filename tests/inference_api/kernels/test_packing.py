"""Packed bytes are kept in files: they may change with their version only."""

from hashlib import sha256

import numpy as np
import pytest

from inference_api.kernels.library import (
    Kernels,
    PackedWeight,
    supported_variants,
)
from inference_api.kernels.packing import LAYOUT_VERSION, Bits

VARIANTS = supported_variants()

OUTPUTS, INPUTS = 70, 96
PACKED: dict[tuple[int, Bits], str] = {  # by version and bits
    (3, 32): "9fe39194c1fdae80fdec15f301d76a12be89a2a9d996e22d5adba3494a10ae7c",
    (3, 16): "c8eda3f33847cfd8d8cd3c63edfcd78d52a046c16cd54a736416fe09db1358bf",
    (3, 8): "7c8106bdcfbb3e95ff524ea4dfe42956404e4e066e0602a29f6d653c72890174",
    (3, 4): "1029def787bdea0f924b286ae6bc67fe71e59adc5f802b2968c64435aed7c1ef",
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_packed_bytes_are_those_of_their_version(bits: Bits, variant: str) -> None:
    numbers = np.arange(OUTPUTS * INPUTS).reshape(OUTPUTS, INPUTS) * 7919 % 2003 - 1001
    weights = (numbers / 1024).astype(np.float32)  # exact
    packed = PackedWeight.empty(bits, OUTPUTS, INPUTS)
    Kernels(1, variant).pack(weights, packed)
    found = sha256(packed.blocks.tobytes()).hexdigest()
    assert found == PACKED[LAYOUT_VERSION, bits], "raise LAYOUT_VERSION and name the new hash"
