"""The C interface, made from `src/interface.h`, which alone declares it."""

import re
from typing import Any

from cffi import FFI

from inference_api.kernels.build import SOURCES


def declarations() -> str:
    """The header without what only a C++ compiler understands."""
    header = (SOURCES / "interface.h").read_text()
    return re.sub(r"^#.*$|\bHEARTH_EXPORT\b", "", header, flags=re.MULTILINE)


ffi = FFI()
ffi.cdef(declarations())


def pointer(address: int, kind: str = "void") -> Any:
    """An address in this process as C's `kind *`."""
    return ffi.cast(f"{kind} *", address)
