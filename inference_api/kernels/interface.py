"""Parses the C interface from `src/interface.h`, its only declaration."""

import re
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from inference_api.kernels.build import SOURCES

Floats = NDArray[np.float32]
FLOAT32 = np.dtype(np.float32)


def declarations() -> str:
    """Returns the header without the parts that only a C++ compiler understands."""
    header = (SOURCES / "interface.h").read_text(encoding="utf-8")
    return re.sub(r"^#.*$|\bHEARTH_EXPORT\b", "", header, flags=re.MULTILINE)


ffi = FFI()
ffi.cdef(declarations())


def data(array: NDArray[Any]) -> Any:
    """Returns the address of an array's numbers. The array must be C-contiguous; numpy refuses
    others.

    The returned object keeps the array alive. A copy of it in a C struct does not.
    """
    return ffi.from_buffer(array)


def floats(array: Floats) -> Any:
    """Like `data`, as C's `float *`."""
    assert array.dtype == FLOAT32
    return ffi.from_buffer("float[]", array)
