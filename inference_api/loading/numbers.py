"""Tensors of files as numpy arrays; numpy has neither bfloat16 nor float8."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inference_api.kernels.interface import Floats
    from inference_api.kernels.library import PackedWeight

FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # inputs of packing
DTYPES = {  # keys: safetensors' names
    kind: np.dtype(dtype)
    for kind, dtype in {
        **FLOATS,
        "F8_E4M3": np.uint8,
        "I64": np.int64,
        "I32": np.int32,
        "I16": np.int16,
        "I8": np.int8,
        "U8": np.uint8,
    }.items()
}
Pack = Callable[[NDArray[Any], "PackedWeight", int], None]  # see `Kernels.pack`


class Numbers(NamedTuple):
    """A tensor as in its file, with BF16 as uint16 and F8 as uint8, so that rows can be cut,
    stacked, transposed and reordered without conversion."""

    kind: str  # one of DTYPES
    data: NDArray[Any]

    def floats(self) -> "Floats":
        """Returns the same numbers in float32, exactly. No copy if they are float32 already."""
        if self.kind == "BF16":
            widened: Floats = (self.data.astype(np.uint32) << 16).view(np.float32)
            return widened
        if self.kind == "F8_E4M3":
            return _FLOAT8.take(self.data)
        return self.data.astype(np.float32, copy=False)

    def rows(self) -> "Iterator[tuple[int, Floats]]":
        """Yields all of them at once: see `BlockTensor`."""
        yield 0, self.floats()

    def pack_into(self, pack: Pack, packed: "PackedWeight", first_output: int) -> None:
        """Write outputs `first_output`, … of `packed`. Raises UnusableWeight."""
        pack(self.data, packed, first_output)


def _float8() -> "Floats":
    """Returns the value of each byte (OCP 8-bit Floating Point Specification 1.0, E4M3)."""
    codes = np.arange(128)
    exponents, fractions = codes >> 3, codes & 7
    significands = np.where(exponents == 0, fractions, fractions + 8).astype(np.float32)
    numbers = np.ldexp(significands, np.maximum(exponents, 1) - 10)
    numbers[127] = np.nan
    return np.concatenate((numbers, -numbers))


_FLOAT8 = _float8()

# Values of MXFP4's codes, doubled to be integers (OCP Microscaling Formats 1.0, E2M1).
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
MXFP4_BIAS = 128  # bias of exponents: the format's 127, and 1 because values are doubled
