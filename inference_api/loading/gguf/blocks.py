"""Reads tensors of GGUF files, as floats or without rounding as the kernels' blocks.

Q8_0, Q4_0, IQ4_NL and MXFP4 have groups of 32 with one scale, like the kernels' blocks, so these
weights are not rounded again: all four fit int8, and Q4_0 also fits int4. Types whose form the
kernels support can stay as they are: see `panels`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import PackedWeight, UnusableWeight
from inference_api.kernels.packing import FILE_BITS
from inference_api.loading.families.layer_plan import SourceTensor
from inference_api.loading.gguf.container import FileTensor
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.gguf.names import row_order
from inference_api.loading.gguf.panels import STORED, write_panels
from inference_api.loading.numbers import MXFP4_BIAS, MXFP4_VALUES, Numbers, Pack
from inference_api.loading.packing.blocks import (
    INT4_OFFSET,
    INT8_VALUES,
    BlockTensor,
    Scales,
    Values,
)
from inference_api.loading.stacks import in_stack

ROWS_AT_A_TIME = 2048  # bounds the memory of a conversion
_Q8_0 = STORED[GGMLQuantizationType.Q8_0]
_Q4_0 = STORED[GGMLQuantizationType.Q4_0]  # the low halves of all bytes come before the high ones
_MXFP4 = STORED[GGMLQuantizationType.MXFP4]
_IQ4_NL_VALUES = np.array(gguf.quants.IQ4_NL.kvalues, np.int8)
_HALF_EXPONENTS = (-24, 15)  # least and largest power of two in half precision


@dataclass(frozen=True, slots=True)
class GgufTensor(BlockTensor):
    """One tensor as it is in the file. `data` is [rows, …] in the gguf package's own form; the
    tensor's numbers are those of `data` times `factor`."""

    kind: GGMLQuantizationType
    data: NDArray[Any]
    factor: float = 1  # other than 1 only in NVFP4: see `factors`

    def reordered(self, order: Sequence[int]) -> "GgufTensor":
        """Returns the tensor with the rows of every head in this order."""
        heads = self.data.reshape(-1, len(order), *self.data.shape[1:])
        return replace(self, data=heads[:, order].reshape(self.data.shape))

    def numbers(self) -> Floats:
        """Returns floats [rows, columns], stacked matrices in turn. Raises UnusableWeight."""
        flat = replace(self, data=self.data.reshape(-1, self.data.shape[-1]))
        return np.concatenate([numbers for _, numbers in flat.rows()])

    def rows(self) -> Iterator[tuple[int, Floats]]:
        for first in range(0, len(self.data), ROWS_AT_A_TIME):
            rows = self.data[first : first + ROWS_AT_A_TIME]
            numbers = np.asarray(gguf.quants.dequantize(rows, self.kind), np.float32)
            if self.factor != 1:
                numbers = numbers * np.float32(self.factor)
            _check_finite(numbers)
            yield first, numbers

    def pack_into(self, pack: Pack, packed: PackedWeight, first_output: int) -> None:
        """See `BlockTensor`."""
        if packed.bits in FILE_BITS.values():
            write_panels(self.kind, self.data, packed, first_output, self.factor)
        else:
            BlockTensor.pack_into(self, pack, packed, first_output)

    def _fits(self, packed: PackedWeight) -> bool:
        match self.kind:
            case GGMLQuantizationType.Q4_0:
                return packed.bits in (8, 4)
            case GGMLQuantizationType.Q8_0:
                values = self.data.view(_Q8_0)["values"]
                return packed.bits == 8 and bool((values >= INT8_VALUES[0]).all())
            case GGMLQuantizationType.IQ4_NL:
                return packed.bits == 8
            case GGMLQuantizationType.MXFP4:
                exponents = self.data.view(_MXFP4)["exponents"].astype(np.int16) - MXFP4_BIAS
                least, largest = _HALF_EXPONENTS
                is_half = (exponents >= least) & (exponents <= largest)
                return packed.bits == 8 and bool(is_half.all())
        return False

    def _groups(self) -> Iterator[tuple[int, Values, Scales]]:
        for first in range(0, len(self.data), ROWS_AT_A_TIME):
            values, scales = _groups(self.kind, self.data[first : first + ROWS_AT_A_TIME])
            _check_finite(scales.view(np.float16))
            yield first, values, scales


def read_parts(
    file: Path, parts: Mapping[str, SourceTensor]
) -> Iterator[tuple[str, Numbers | GgufTensor]]:
    """Yields `parts` by their names in the checkpoint, with rows in our order. Raises
    StartupError."""
    model = read_gguf(file)

    def read(tensor: FileTensor, number: int = 0) -> GgufTensor:
        factors = model.factors.get(tensor.name)
        factor = 1.0 if factors is None else float(factors[number % factors.size])
        try:
            return GgufTensor(tensor.kind, tensor.read(file), factor)
        except (OSError, ValueError) as error:
            raise StartupError([f"{file} is damaged ({error}); get the file again."]) from None

    for name, halves in model.halves.items():
        if name in parts:
            yield name, _joined(file, *map(read, halves))
    for name, tensor in model.tensors.items():
        if name in parts:
            order = row_order(model.architecture, parts[name], model.config)
            single = in_stack(name)
            weight = read(tensor, 0 if single is None else single.number)
            yield name, weight.reordered(order) if order else weight


def _joined(file: Path, keys: GgufTensor, values: GgufTensor) -> Numbers:
    """Returns one matrix, [heads * (unturned + value_dim), rank]: see `Halves`. Raises
    StartupError."""
    num_heads, value_dim = values.data.shape[:2]
    try:
        of_keys, of_values = keys.numbers(), values.numbers()
    except UnusableWeight as error:
        raise StartupError([f"{file} cannot be loaded: {error}; get the file again."]) from error
    of_keys = of_keys.reshape(num_heads, keys.data.shape[1], -1).transpose(0, 2, 1)
    joined = np.concatenate((of_keys, of_values.reshape(num_heads, value_dim, -1)), 1)
    return Numbers("F32", joined.reshape(-1, joined.shape[-1]))


def _check_finite(numbers: NDArray[Any]) -> None:
    if not np.isfinite(numbers).all():
        raise UnusableWeight("it has weights that are not finite")


def _groups(kind: GGMLQuantizationType, data: NDArray[np.uint8]) -> tuple[Values, Scales]:
    """Returns values [rows, groups, 32] and scales [rows, groups]."""
    data = np.ascontiguousarray(data)
    if kind == GGMLQuantizationType.Q8_0:
        groups = data.view(_Q8_0)
        return groups["values"], np.ascontiguousarray(groups["units"][..., 0])
    if kind == GGMLQuantizationType.MXFP4:
        groups = data.view(_MXFP4)
        exponents = groups["exponents"][..., 0].astype(np.int32) - MXFP4_BIAS
        powers = np.ldexp(np.float32(1), exponents).astype(np.float16)
        return MXFP4_VALUES[_halves(groups["low"])], powers.view(np.uint16)
    groups = data.view(_Q4_0)
    halves, scales = _halves(groups["low"]), np.ascontiguousarray(groups["units"][..., 0])
    if kind == GGMLQuantizationType.IQ4_NL:
        return _IQ4_NL_VALUES[halves], scales
    return halves.view(np.int8) - np.int8(INT4_OFFSET), scales


def _halves(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the 32 half bytes of bytes [..., 16], all low halves first."""
    return np.concatenate((pairs & 0x0F, pairs >> 4), axis=-1)
