"""The C interface, made from `src/interface.h`, which alone declares it."""

import re
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from inference_api.kernels.build import SOURCES

Floats = NDArray[np.float32]
FLOAT32 = np.dtype(np.float32)


def declarations() -> str:
    """The header without what only a C++ compiler understands."""
    header = (SOURCES / "interface.h").read_text()
    return re.sub(r"^#.*$|\bHEARTH_EXPORT\b", "", header, flags=re.MULTILINE)


ffi = FFI()
ffi.cdef(declarations())


def data(array: NDArray[Any]) -> Any:
    """The address of an array's numbers, which have to be C-contiguous: numpy refuses others.

    Arrays live as long as what is returned, and not as what it is written to.
    """
    return ffi.from_buffer(array)


def floats(array: Floats) -> Any:
    """Like `data`, as C's `float *`."""
    assert array.dtype == FLOAT32
    return ffi.from_buffer("float[]", array)
