"""Matrices of quantised safetensors: to numbers, or where values fit, to the kernels' blocks.

Integers of 4 and 8 bits whose groups are multiples of the kernels' 32 inputs move as they are, and
their scales are rounded to half precision, which most of them have. All others go by way of their
numbers, a few rows at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inference_api.errors import StartupError
from inference_api.kernels.library import PackedWeight, UnusableWeight
from inference_api.kernels.packing import GROUP
from inference_api.loading.config import Quantisation, TensorNames
from inference_api.loading.files import tensor_faults, tensor_places
from inference_api.loading.gguf.blocks import MXFP4_BIAS, MXFP4_VALUES
from inference_api.loading.layout import SourceTensor
from inference_api.loading.packing.blocks import (
    INT4_VALUES,
    INT8_VALUES,
    BlockTensor,
    Scales,
    Values,
)
from inference_api.loading.quantised.formats import WORD_BITS, Wanted, num_blocks, wants
from inference_api.loading.safetensors import opened, read_tensor

ROWS_AT_A_TIME = 256  # bounds the memory that conversion takes; whole words of any bits
MAX_HALF = torch.finfo(torch.float16).max
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # places of eight outputs in a word


@dataclass(frozen=True, slots=True)
class QuantisedTensor(BlockTensor):
    """`values` times the scale of the block that their row and column belong to."""

    values: Tensor  # [rows, columns], int8, int16 or float8
    scales: Tensor  # [row blocks, column blocks], float32
    row_blocks: Tensor  # [rows], int64
    column_blocks: Tensor  # [columns], int64

    def with_rows(self, ordered: Callable[[Tensor], Tensor]) -> "QuantisedTensor":
        """`ordered` has what follows the first dimension of a tensor in another order."""
        values = ordered(self.values.view(torch.uint8)).view(self.values.dtype)
        return replace(self, values=values, row_blocks=ordered(self.row_blocks))

    def _fits(self, packed: PackedWeight) -> bool:
        ranges = {8: INT8_VALUES, 4: INT4_VALUES}
        if packed.bits not in ranges or self.values.dtype.is_floating_point:
            return False
        by_group = self.column_blocks.view(-1, GROUP)
        if not (by_group == by_group[:, :1]).all():
            return False
        if self.scales.abs().max() > MAX_HALF:
            return False
        least, largest = ranges[packed.bits]
        return bool(self.values.min() >= least and self.values.max() <= largest)

    def _numbers(self) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(self.values), ROWS_AT_A_TIME):
            rows = slice(first, first + ROWS_AT_A_TIME)
            scales = self.scales[self.row_blocks[rows]][:, self.column_blocks]
            numbers = self.values[rows].float() * scales
            if not numbers.isfinite().all():
                raise UnusableWeight("it has weights that are not finite")
            yield first, numbers

    def _groups(self) -> Iterator[tuple[int, Values, Scales]]:
        groups = self.column_blocks[::GROUP]
        for first in range(0, len(self.values), ROWS_AT_A_TIME):
            rows = slice(first, first + ROWS_AT_A_TIME)
            values = self.values[rows].to(torch.int8).unflatten(1, (-1, GROUP)).numpy()
            scales = self.scales[self.row_blocks[rows]][:, groups].half()
            yield first, values, scales.numpy().view(np.uint16)


def read_quantised(
    files: Sequence[Path],
    parts: Mapping[str, SourceTensor],
    quantisation: Quantisation,
    names: TensorNames,
) -> Iterator[tuple[str, Tensor | QuantisedTensor]]:
    """`parts` by name, in the order of the files. Memory: that of one part, a byte or two a value,
    and of its tensors in the file. Raises StartupError."""
    places = {name: (file, at) for file in files for name, at in tensor_places(file, names).items()}
    stored = {name: place.stored for name, (_, place) in places.items()}
    wanted = [(part, wants(part, quantisation, stored)) for part in parts.values()]
    faults = tensor_faults([each for _, tensors in wanted for each in tensors if each], stored)
    if faults:
        raise StartupError(faults)

    def read(tensor: Wanted) -> Tensor:
        file, place = places[tensor.name]
        with opened(file) as stream:
            return read_tensor(stream, tensor.name, place, is_quantised=bool(tensor.dtypes))

    def begin(name: str) -> tuple[int, int]:
        file, place = places[name]
        return files.index(file), place.begin

    for part, tensors in sorted(wanted, key=lambda each: begin(each[1].weight.name)):
        values = read(tensors.weight)
        if tensors.scale is None:
            yield part.name, values
            continue
        scales = read(tensors.scale)
        zeros = None if tensors.zero is None else read(tensors.zero)
        order = None if tensors.order is None else read(tensors.order)
        try:
            yield part.name, _quantised(part, quantisation, values, scales, zeros, order)
        except UnusableWeight as error:
            raise StartupError(
                [f"{part.name} cannot be loaded: {error}; get the model again."]
            ) from error


def _quantised(
    part: SourceTensor,
    quantisation: Quantisation,
    stored: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
) -> QuantisedTensor:
    """Raises UnusableWeight."""
    rows, columns = num_blocks(part, quantisation)
    if quantisation.form in ("awq", "gptq"):
        scales = scales.T
    row_blocks, column_blocks = (
        torch.arange(size) // (block or size)
        for size, block in zip(part.shape, quantisation.block, strict=True)
    )
    if order is not None:
        column_blocks = order.long()
        if column_blocks.min() < 0 or column_blocks.max() >= columns:
            raise UnusableWeight(f"it has inputs of groups that are not among its {columns}")
    scales = _powers(scales) if quantisation.form == "mxfp4" else scales.float()
    scales = scales.reshape(rows, columns)
    if not scales.isfinite().all():
        raise UnusableWeight("it has scales that are not finite")
    if quantisation.form in ("float8", "int8"):
        return QuantisedTensor(stored, scales, row_blocks, column_blocks)
    if quantisation.form == "mxfp4":
        values = _doubled(stored).flatten(1)[:, : part.shape[1]]
    else:
        values = _integers(part, quantisation, stored, zeros, column_blocks)
    return QuantisedTensor(values, scales, row_blocks, column_blocks)


def _powers(exponents: Tensor) -> Tensor:
    """The scales of MXFP4, for values that are doubled: 255 stands for no number (OCP Microscaling
    Formats 1.0, section 5.4.1)."""
    powers = torch.from_numpy(np.ldexp(np.float32(1), np.arange(256) - MXFP4_BIAS))
    powers[255] = torch.nan
    return powers[exponents.int()]


def _doubled(pairs: Tensor) -> Tensor:
    """The values of MXFP4, doubled to be integers: bytes [outputs, blocks, 16], whose low halves
    come before their high ones, to [outputs, blocks, 32]."""
    pair = np.arange(256)
    table = np.stack((MXFP4_VALUES[pair & 0x0F], MXFP4_VALUES[pair >> 4]), -1)
    return torch.from_numpy(table)[pairs.int()].flatten(-2)


def _integers(
    part: SourceTensor,
    quantisation: Quantisation,
    words: Tensor,
    packed_zeros: Tensor | None,
    column_blocks: Tensor,
) -> Tensor:
    """Values with their zeros taken off, [outputs, inputs], from words of either order."""
    outputs, inputs = part.shape
    bits = quantisation.bits
    zeros = torch.full((outputs, 1), 2 ** (bits - 1), dtype=torch.int32)
    blocks = torch.zeros_like(column_blocks)
    if packed_zeros is not None:
        by_group = packed_zeros.T if quantisation.form == "packed" else packed_zeros
        zeros = _unpacked(by_group, quantisation).T[:outputs] + quantisation.zero_offset
        blocks = column_blocks
    # Without zeros of their own, values of 8 bits end at -128 and 127.
    kind = torch.int8 if bits == 4 or packed_zeros is None else torch.int16
    values = torch.empty(outputs, inputs, dtype=kind)
    for first in range(0, outputs, ROWS_AT_A_TIME):
        rows = slice(first, min(first + ROWS_AT_A_TIME, outputs))
        if quantisation.form == "awq":
            per_word = WORD_BITS // bits
            some = words[:, first // per_word : -(-rows.stop // per_word)]
            unpacked = _unpacked(some, quantisation).T[: rows.stop - first]
        else:
            some = words[:, rows].T if quantisation.form == "gptq" else words[rows]
            unpacked = _unpacked(some, quantisation)[:, :inputs]
        values[rows] = unpacked - zeros[rows][:, blocks]
    return values


def _unpacked(words: Tensor, quantisation: Quantisation) -> Tensor:
    """int32 [n, words] to the values in their bits, [n, values]."""
    bits = quantisation.bits
    places = AWQ_ORDER if quantisation.form == "awq" else range(WORD_BITS // bits)
    shifts = torch.tensor([bits * place for place in places], dtype=torch.int32)
    values: Tensor = (words.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return values.flatten(-2)
