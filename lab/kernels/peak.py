"""What the processor's products make at most, whatever memory does: the bound of steps of many
tokens. Compiles `peak.cpp` for the best variant of the kernels that runs here."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from inference_api.kernels.build import FLAGS, find_compiler, units_here

SOURCE = Path(__file__).with_suffix(".cpp")
ROUNDS = 1_000_000  # of each thread in a turn: some milliseconds
COMPILE_TIMEOUT_S = 300
WITH_SCALES = "int8, with the scales of groups"  # the most that weights in groups of 32 allow
# Kinds of products, by the form of weights.
KINDS = {"float32": "float32", "bfloat16": "bfloat16", WITH_SCALES: "int8_groups"}

Multiply = Callable[[int], int]


class Peak:
    """Products of one kind by all threads. One thread calls."""

    def __init__(self, form: str, num_threads: int) -> None:
        """`form` of weights; what is not here multiplies in int8."""
        self._multiply = _products(KINDS.get(form, "int8"))
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads)

    def multiply(self) -> int:
        """Returns the operations of a turn; 0 where the kernels multiply by other instructions."""
        return sum(self._threads.map(self._multiply, [ROUNDS] * self._num_threads))


def _products(kind: str) -> Multiply:
    multiply: Multiply = getattr(_library(), f"peak_{kind}")
    return multiply


@cache
def _library() -> ctypes.CDLL:
    flags = [*units_here().values()][-1]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "peak.so"
        command = [*find_compiler(), *FLAGS, *flags, "-shared", str(SOURCE), "-o", str(target)]
        subprocess.run(command, timeout=COMPILE_TIMEOUT_S, check=True)
        library = ctypes.CDLL(str(target))
    for name in ("peak_int8", "peak_int8_groups", "peak_bfloat16", "peak_float32"):
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.c_int64], ctypes.c_int64
    return library
