"""Writes quantised weights to the kernels' blocks without rounding them again.

`kernels/src/layout.h` describes a block.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from inference_api.kernels.interface import Floats
from inference_api.kernels.library import PackedWeight
from inference_api.kernels.packing import GROUP, PANEL
from inference_api.loading.numbers import Pack

QUAD = 4
HALVES = 2  # half bytes in a byte; two quads of int4 share bytes
INT8_OFFSET, INT4_OFFSET = 128, 8
INT8_VALUES, INT4_VALUES = (-127, 127), (-8, 7)  # least and greatest value in a block

_INT8_BLOCK = np.dtype(
    [("values", np.uint8, (GROUP // QUAD, PANEL, QUAD)), ("scales", np.uint16, (PANEL,))]
)
_INT4_BLOCK = np.dtype(
    [("values", np.uint8, (GROUP // QUAD // HALVES, PANEL, QUAD)), ("scales", np.uint16, (PANEL,))]
)

Values = NDArray[np.int8]
Scales = NDArray[np.uint16]  # bits of half precision


class BlockTensor(ABC):
    """A quantised matrix of a checkpoint. It is converted a few rows at a time, to bound memory;
    iterators yield the index of the first row with them."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> Iterator[tuple[int, Floats]]:
        """Yields the weights as floats, [rows, columns]. Raises UnusableWeight."""

    def pack_into(self, pack: Pack, packed: PackedWeight, first_output: int) -> None:
        """Write outputs `first_output`, … of `packed`: unchanged if its form can hold the values,
        otherwise by `pack`, which rounds again. Raises UnusableWeight."""
        if not self._fits(packed):
            for first, numbers in self.rows():
                pack(numbers, packed, first_output + first)
            return
        for first, values, scales in self._groups():
            write_groups(values, scales, packed, first_output + first)

    @abstractmethod
    def _fits(self, packed: PackedWeight) -> bool:
        """Returns whether the form of `packed` can hold the values unchanged."""

    @abstractmethod
    def _groups(self) -> Iterator[tuple[int, Values, Scales]]:
        """Yields the groups of a matrix that fits, for `write_groups`. Raises UnusableWeight."""


def write_groups(values: Values, scales: Scales, packed: PackedWeight, first_output: int) -> None:
    """Write outputs `first_output`, … of `packed`, in 8 or 4 bits, from `values` [rows, groups, 32]
    within its range and `scales` [rows, groups] as bits of half precision."""
    rows, num_groups, _ = values.shape
    outputs = np.arange(first_output, first_output + rows)
    panels, lanes = outputs // PANEL, outputs % PANEL
    layout = _INT8_BLOCK if packed.bits == 8 else _INT4_BLOCK
    blocks = packed.blocks.view(layout).reshape(-1, num_groups)
    blocks["scales"][panels, :, lanes] = scales
    stored: NDArray[np.uint8]
    if packed.bits == 8:
        stored = values.view(np.uint8) + np.uint8(INT8_OFFSET)
    else:
        halves = (values + np.int8(INT4_OFFSET)).view(np.uint8)
        pairs = halves.reshape(rows, num_groups, -1, HALVES, QUAD)
        stored = pairs[:, :, :, 0] | pairs[:, :, :, 1] << np.uint8(4)
    blocks["values"][panels, :, :, lanes] = stored.reshape(rows, num_groups, -1, QUAD)
