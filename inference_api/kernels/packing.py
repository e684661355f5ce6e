"""The kernels' limits and sizes, to plan memory with. Loads no torch; see `src/layout.h`."""

from typing import Literal

Bits = Literal[8, 4]
BITS: dict[str, Bits] = {"int8": 8, "int4": 4}  # by the values of QUANTIZATION
GROUP = 32  # inputs that share a scale
PANEL = 32  # outputs that are packed together
SCALE_BYTES = 2
MAX_HEAD_DIM = 256
CACHE_BYTES = {
    "auto": 2,
    "float16": 2,
    "float32": 4,
}  # of a number, by the values of KV_CACHE_DTYPE


def packed_bytes(bits: Bits, outputs: int, inputs: int) -> int:
    """Bytes of a packed matrix [outputs, inputs], where `inputs` is a multiple of GROUP."""
    panels = -(-outputs // PANEL)
    return panels * PANEL * (inputs * bits // 8 + inputs // GROUP * SCALE_BYTES)
