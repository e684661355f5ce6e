"""Converts matrices of quantised safetensors to floats, or directly to the kernels' blocks.

Integers of 4 and 8 bits in groups of a multiple of 32 inputs are moved unchanged; their scales are
rounded to half precision, which most have already. NVFP4 stays as it is if the kernels use it in
that form. Other formats are converted to floats and packed again, a few rows at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import PackedWeight, UnusableWeight
from inference_api.kernels.packing import FILE_BITS, GROUP
from inference_api.loading.config import Quantisation, TensorNames
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.files import opened, read_numbers, tensor_faults, tensor_places
from inference_api.loading.gguf import NVFP4
from inference_api.loading.numbers import DTYPES, FLOATS, MXFP4_BIAS, MXFP4_VALUES, Numbers, Pack
from inference_api.loading.packing.blocks import (
    INT4_VALUES,
    INT8_VALUES,
    BlockTensor,
    Scales,
    Values,
)
from inference_api.loading.quantised import formats

ROWS_AT_A_TIME = 256  # bounds the memory of a conversion; a multiple of any word's values
MAX_HALF = np.finfo(np.float16).max
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # positions of eight outputs in a word

_NVFP4_CODES = np.zeros(25, np.uint8)  # keys are values plus 12
_NVFP4_CODES[MXFP4_VALUES[::-1] + 12] = np.arange(15, -1, -1)

# MXFP4's scales of doubled values (OCP Microscaling Formats 1.0, section 5.4.1).
_POWERS: Floats = np.ldexp(np.float32(1), np.arange(256) - MXFP4_BIAS)
_POWERS[255] = np.nan

Reorder = Callable[[NDArray[Any]], NDArray[Any]]  # reorders the first dimension


@dataclass(frozen=True, slots=True)
class QuantisedTensor(BlockTensor):
    """A matrix of `values`, each times the scale of its block."""

    values: Numbers  # [rows, columns], I8, I16 or F8_E4M3
    scales: Floats  # [row blocks, column blocks]
    row_blocks: NDArray[np.int64]  # [rows]
    column_blocks: NDArray[np.int64]  # [columns]

    def reordered(self, reorder: Reorder) -> "QuantisedTensor":
        """Returns the tensor with its rows in another order."""
        values = Numbers(self.values.kind, reorder(self.values.data))
        row_blocks = reorder(self.row_blocks)
        return replace(self, values=values, row_blocks=row_blocks)

    def multiplied(self, factors: Floats) -> "QuantisedTensor":
        """Returns the tensor with its rows multiplied. Each row then has its own scales."""
        scales = self.scales[self.row_blocks] * factors[:, None]
        return replace(self, scales=scales, row_blocks=np.arange(len(factors)))

    def rows(self) -> Iterator[tuple[int, Floats]]:
        for first, values, scales in self._parts(self.column_blocks):
            with np.errstate(over="ignore"):
                numbers = values.floats() * scales
            if not np.isfinite(numbers).all():
                raise UnusableWeight("it has weights that are not finite")
            yield first, numbers

    def _fits(self, packed: PackedWeight) -> bool:
        ranges = {8: INT8_VALUES, 4: INT4_VALUES}
        if packed.bits not in ranges or self.values.kind == "F8_E4M3":
            return False
        by_group = self.column_blocks.reshape(-1, GROUP)
        if (by_group != by_group[:, :1]).any() or np.abs(self.scales).max() > MAX_HALF:
            return False
        least, largest = ranges[packed.bits]
        return bool(self.values.data.min() >= least and self.values.data.max() <= largest)

    def _groups(self) -> Iterator[tuple[int, Values, Scales]]:
        for first, values, scales in self._parts(self.column_blocks[::GROUP]):
            groups = values.data.astype(np.int8).reshape(*scales.shape, GROUP)
            yield first, groups, scales.astype(np.float16).view(np.uint16)

    def _parts(self, columns: NDArray[np.int64]) -> Iterator[tuple[int, Numbers, Floats]]:
        """Yields a few rows at a time, with their scales for each of `columns`."""
        for first in range(0, len(self.row_blocks), ROWS_AT_A_TIME):
            rows = slice(first, first + ROWS_AT_A_TIME)
            scales = self.scales[self.row_blocks[rows]].take(columns, axis=1)
            yield first, Numbers(self.values.kind, self.values.data[rows]), scales


@dataclass(frozen=True, slots=True)
class Nvfp4Tensor(QuantisedTensor):
    """An NVFP4 matrix. `scales` are the numbers of `codes` times `factor`, halved because values
    are doubled."""

    codes: NDArray[np.uint8]  # [row blocks, column blocks]
    factor: float

    def pack_into(self, pack: Pack, packed: PackedWeight, first_output: int) -> None:
        """See `BlockTensor`. Converts to GGUF's bytes first, which have a group's first eight
        values in the low halves."""
        if packed.bits != FILE_BITS[NVFP4]:
            QuantisedTensor.pack_into(self, pack, packed, first_output)
            return
        from gguf import GGMLQuantizationType

        from inference_api.loading.gguf.panels import write_panels

        for first in range(0, len(self.row_blocks), ROWS_AT_A_TIME):
            rows = slice(first, first + ROWS_AT_A_TIME)
            halves = _NVFP4_CODES[self.values.data[rows] + 12]
            halves = halves.reshape(len(halves), -1, 4, 2, formats.NVFP4_BLOCK // 2)
            pairs = halves[:, :, :, 0] | halves[:, :, :, 1] << np.uint8(4)
            scales = self.codes[self.row_blocks[rows]].reshape(*pairs.shape[:3])
            blocks = np.concatenate((scales, pairs.reshape(*pairs.shape[:2], -1)), -1)
            data = blocks.reshape(len(blocks), -1)
            write_panels(
                GGMLQuantizationType.NVFP4, data, packed, first_output + first, self.factor
            )


def read_quantised(
    files: Sequence[Path],
    parts: Mapping[str, SourceTensor],
    quantisation: Quantisation,
    names: TensorNames,
) -> Iterator[tuple[str, Numbers | QuantisedTensor]]:
    """Yields `parts` by name, in the order of the files. Raises StartupError. Takes the memory of
    one part, with a byte or two for each value, and of its tensors in the file."""
    places = {name: (file, at) for file in files for name, at in tensor_places(file, names).items()}
    stored = {name: place.stored for name, (_, place) in places.items()}
    wanted = [(part, formats.wants(part, quantisation, stored)) for part in parts.values()]
    faults = tensor_faults([each for _, tensors in wanted for each in tensors if each], stored)
    if faults:
        raise StartupError(faults)

    def read(tensor: formats.Wanted) -> Numbers:
        file, place = places[tensor.name]
        with opened(file) as stream:
            return read_numbers(stream, tensor.name, place, tensor.dtypes or FLOATS)

    def begin(name: str) -> tuple[int, int]:
        file, place = places[name]
        return files.index(file), place.begin

    for part, tensors in sorted(wanted, key=lambda each: begin(each[1].weight.name)):
        values = read(tensors.weight)
        if tensors.scale is None:
            yield part.name, values
            continue
        scales = read(tensors.scale)
        factor = None if tensors.factor is None else read(tensors.factor)
        zeros = None if tensors.zero is None else read(tensors.zero).data
        order = None if tensors.order is None else read(tensors.order).data
        try:
            if factor is not None:
                yield part.name, _nvfp4(part, quantisation, values, scales, factor)
            else:
                yield part.name, _quantised(part, quantisation, values, scales, zeros, order)
        except UnusableWeight as error:
            raise StartupError(
                f"{part.name} cannot be loaded: {error}; get the model again."
            ) from error


def _quantised(
    part: SourceTensor,
    quantisation: Quantisation,
    stored: Numbers,
    scales: Numbers,
    zeros: NDArray[np.int32] | None,
    order: NDArray[np.int32] | None,
) -> QuantisedTensor:
    """Raises UnusableWeight."""
    rows, columns = formats.num_blocks(part, quantisation)
    row_blocks, column_blocks = (
        np.arange(size) // (block or size)
        for size, block in zip(part.shape, quantisation.block, strict=True)
    )
    if order is not None:
        column_blocks = order.astype(np.int64)
        if column_blocks.min() < 0 or column_blocks.max() >= columns:
            raise UnusableWeight(f"it has inputs of groups that are not among its {columns}")
    factors = _POWERS[scales.data] if quantisation.form == "mxfp4" else scales.floats()
    if quantisation.form in ("awq", "gptq"):
        factors = factors.T
    factors = factors.reshape(rows, columns)
    if not np.isfinite(factors).all():
        raise UnusableWeight("it has scales that are not finite")
    if quantisation.form in ("float8", "int8"):
        values = stored
    elif quantisation.form == "mxfp4":
        values = Numbers(
            "I8", MXFP4_VALUES[_halves(stored.data)].reshape(part.shape[0], -1)[:, : part.shape[1]]
        )
    else:
        values = _integers(part, quantisation, stored.data, zeros, column_blocks)
    return QuantisedTensor(values, factors, row_blocks, column_blocks)


def _nvfp4(
    part: SourceTensor,
    quantisation: Quantisation,
    stored: Numbers,
    scales: Numbers,
    factor: Numbers,
) -> Nvfp4Tensor:
    """Raises UnusableWeight."""
    [number] = factor.floats().reshape(-1)
    codes = scales.data.reshape(formats.num_blocks(part, quantisation))
    with np.errstate(all="ignore"):
        halved = Numbers(scales.kind, codes).floats() * np.float32(0.5)
        if quantisation.form == "nvfp4_packed":
            of_blocks, number = halved / number, np.float32(1) / number
        else:
            of_blocks = halved * number
    if not np.isfinite(of_blocks).all():
        raise UnusableWeight("it has scales that are not finite")
    values = Numbers("I8", MXFP4_VALUES[_halves(stored.data)])
    rows, columns = (np.arange(size) for size in part.shape)
    return Nvfp4Tensor(
        values, of_blocks, rows, columns // formats.NVFP4_BLOCK, codes, float(number)
    )


def _halves(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the halves of bytes [..., n] as [..., 2 n], each byte's low half first."""
    return np.stack((pairs & 0x0F, pairs >> 4), -1).reshape(*pairs.shape[:-1], -1)


def _integers(
    part: SourceTensor,
    quantisation: Quantisation,
    words: NDArray[np.int32],
    packed_zeros: NDArray[np.int32] | None,
    column_blocks: NDArray[np.int64],
) -> Numbers:
    """Returns values minus their zeros, [outputs, inputs], from words of either order."""
    outputs, inputs = part.shape
    bits = quantisation.bits
    zeros = np.full((outputs, 1), 2 ** (bits - 1), np.int16)
    blocks = np.zeros(1, np.int64)
    if packed_zeros is not None:
        by_group = packed_zeros.T if quantisation.form == "packed" else packed_zeros
        zeros = _unpacked(by_group, quantisation).T[:outputs] + np.int16(quantisation.zero_offset)
        blocks = column_blocks
    # Without zeros in the file, values of 8 bits range from -128 to 127.
    kind = "I8" if bits == 4 or packed_zeros is None else "I16"
    values = np.empty((outputs, inputs), DTYPES[kind])
    for first in range(0, outputs, ROWS_AT_A_TIME):
        rows = slice(first, min(first + ROWS_AT_A_TIME, outputs))
        if quantisation.form == "awq":
            per_word = formats.WORD_BITS // bits
            chunk = words[:, first // per_word : -(-rows.stop // per_word)]
            unpacked = _unpacked(chunk, quantisation).T[: rows.stop - first]
        else:
            chunk = words[:, rows].T if quantisation.form == "gptq" else words[rows]
            unpacked = _unpacked(chunk, quantisation)[:, :inputs]
        values[rows] = unpacked - zeros[rows].take(blocks, axis=1)
    return Numbers(kind, values)


def _unpacked(words: NDArray[np.int32], quantisation: Quantisation) -> NDArray[np.uint8]:
    """Returns the values in words [n, words], lowest bits first, as [n, values]."""
    values = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if quantisation.bits == 4:
        values = _halves(values)
    if quantisation.form == "awq":
        shape = values.shape
        values = values.reshape(-1, len(AWQ_ORDER))[:, AWQ_ORDER].reshape(shape)
    return values
