"""Packs grids and values into GGUF's blocks: see `inference_api.loading.gguf.panels`."""

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from inference_api.loading.gguf.panels import STORED
from scripts.quantize.grids import Floats, Grid

Bytes = NDArray[np.uint8]
FOUR, FOUR_BITS, TWO_BITS = np.uint8(4), np.uint8(0x0F), np.uint8(0x30)


def stored(grid: Grid, values: Floats) -> Bytes:
    """Returns the bytes [blocks, ...] of `values` [blocks, groups, inputs]."""
    form = grid.form
    places = np.searchsorted(form.table, values) if form.table else values - form.values[0]
    offset = places.astype(np.uint8).reshape(len(values), -1)
    blocks = np.zeros(len(values), STORED[form.kind])
    num_units = blocks["units"].shape[-1]
    blocks["units"] = grid.units[:, :num_units].view(np.uint16)
    match form.kind:
        case GGMLQuantizationType.Q8_0:
            blocks["values"] = values.reshape(len(values), -1)
        case GGMLQuantizationType.Q6_K:
            blocks["scales"] = grid.scales
            quarters = offset.reshape(-1, 2, 4, 32)  # each half of a block has four quarters
            low = _pairs(quarters[:, :, :2], quarters[:, :, 2:])
            blocks["low"] = low.reshape(blocks["low"].shape)
            blocks["high"] = _packed_bits(quarters >> FOUR, bits=2)
        case GGMLQuantizationType.Q4_K | GGMLQuantizationType.Q5_K:
            blocks["scales"] = _six_bits(grid.scales, grid.minima)
            groups = offset.reshape(-1, form.num_groups, 32)
            blocks["low"] = _pairs(groups[:, 0::2], groups[:, 1::2])
            if form.kind == GGMLQuantizationType.Q5_K:
                blocks["high"] = _packed_bits(groups >> FOUR, bits=1)
        case _:
            blocks["low"] = _pairs(offset[:, :16], offset[:, 16:])
            if form.kind == GGMLQuantizationType.Q5_0:
                blocks["high"][..., 0] = np.packbits(offset >> FOUR, axis=-1, bitorder="little")
    return blocks.view(np.uint8).reshape(len(blocks), -1)


def _pairs(low: Bytes, high: Bytes) -> Bytes:
    return low & FOUR_BITS | high << FOUR


def _packed_bits(parts: Bytes, bits: int) -> Bytes:
    """Packs the lowest bits of [..., parts, n] into bytes [..., n], the first part's lowest."""
    shifts = np.arange(0, bits * parts.shape[-2], bits, dtype=np.uint8)[:, None]
    joined: Bytes = np.bitwise_or.reduce(parts << shifts, -2)
    return joined


def _six_bits(scales: NDArray[Any], minima: NDArray[Any]) -> Bytes:
    """Returns [blocks, 3, 4] bytes of eight scales and minima: those of the first four groups, with
    the two high bits of the last four groups above them, then the low bits of the last four."""
    both = np.stack((scales, minima), 1).astype(np.uint8)
    first, last = both[..., :4], both[..., 4:]
    low = last[:, :1] & FOUR_BITS | last[:, 1:] << FOUR
    return np.concatenate((first | (last & TWO_BITS) << np.uint8(2), low), 1)
