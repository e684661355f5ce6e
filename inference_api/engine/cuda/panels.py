"""Matrices as the kernels pack them in 8 and 4 bits, on any device: see `kernels/src/layout.h`."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inference_api.kernels.packing import BITS, GROUP, PANEL, SCALE_BYTES, Bits, packed_bytes

QUAD = 4  # inputs whose bytes are adjacent
HALF = 4  # bits of an int4


@dataclass(frozen=True, slots=True)
class Panels:
    """A matrix [outputs, inputs], whose outputs are those of `blocks` from `first` on."""

    blocks: Tensor  # bytes
    bits: Bits  # 8 or 4
    outputs: int
    inputs: int
    first: int = 0  # below PANEL

    def parts(self, count: int) -> "list[Panels]":
        """Returns the matrix in `count` parts, each with equally many outputs."""
        size = self.outputs // count
        panel_bytes = packed_bytes(self.bits, PANEL, self.inputs)
        parts = []
        for begin in range(self.first, self.first + self.outputs, size):
            end = -(-(begin + size) // PANEL)
            blocks = self.blocks[begin // PANEL * panel_bytes : end * panel_bytes]
            parts.append(replace(self, blocks=blocks, outputs=size, first=begin % PANEL))
        return parts


def unpacked(matrix: Panels, rows: Tensor | None = None) -> Tensor:
    """Returns the exact numbers in float32: [outputs, inputs], or [n, inputs] for `rows` [n]."""
    values_bytes = PANEL * GROUP * matrix.bits // 8
    block_bytes = values_bytes + PANEL * SCALE_BYTES
    panels = matrix.blocks.view(-1, matrix.inputs // GROUP, block_bytes)
    if rows is not None:
        panels = panels[rows // PANEL]
    values, scales = panels.split_with_sizes([values_bytes, PANEL * SCALE_BYTES], -1)
    quads = values.unflatten(-1, (-1, PANEL, QUAD))
    if matrix.bits == BITS["int4"]:  # two quads share bytes; the first has the low halves
        low = 2**HALF - 1
        quads = torch.stack((quads & low, quads >> HALF), 3).flatten(2, 3)
    numbers: Tensor = (
        quads.permute(0, 3, 1, 2, 4).flatten(3).float()
    )  # [panels, PANEL, groups, GROUP]
    numbers -= 2 ** (matrix.bits - 1)
    numbers *= scales.contiguous().view(torch.float16).mT.unsqueeze(-1).float()
    numbers = numbers.flatten(2)
    if rows is not None:
        selected: Tensor = numbers[torch.arange(len(rows), device=rows.device), rows % PANEL]
        return selected
    return numbers.flatten(0, 1)[matrix.first : matrix.first + matrix.outputs]
