"""GGUF files.

The modules that read them import the package `gguf`, which takes 6 MB. Most models are in
safetensors, so other modules import this one, and those only for a file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from inference_api.kernels.packing import FILE_BITS, Bits
from inference_api.loading.numbers import FLOATS

if TYPE_CHECKING:
    from inference_api.loading.gguf.files import GgufModel

SUFFIX, NVFP4 = ".gguf", "NVFP4"
# Bits of the kernels' blocks that hold values of these types unchanged; see `gguf.blocks`.
KEPT_BITS: Mapping[str, Bits] = {"Q4_0": 4, **FILE_BITS}  # forms of fewer than 8 bits
BLOCK_BITS: Mapping[str, Bits] = {"Q8_0": 8, **KEPT_BITS}
TYPES = frozenset((*FLOATS, *BLOCK_BITS, "TQ1_0", "TQ2_0"))  # types that can be converted to floats
IN_HALVES = " in halves"  # follows the type of a matrix that is stored as two tensors


def is_gguf(path: Path) -> bool:
    return path.suffix == SUFFIX


def read_gguf(path: Path) -> "GgufModel":
    """See `gguf.files`. Raises StartupError."""
    from inference_api.loading.gguf import files

    return files.read_gguf(path)
