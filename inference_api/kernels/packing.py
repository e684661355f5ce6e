"""The kernels' limits and sizes, to plan memory with. See `src/layout.h`."""

from typing import Literal

LAYOUT_VERSION = 2  # version of packed bytes, which files keep: raise it when packing changes
# Form of weights, by the bits of one: 32 and 16 are float32 and bfloat16; K-quants have 100 more.
Bits = Literal[32, 16, 8, 5, 4, 104, 105, 106]
BITS: dict[str, Bits] = {"int8": 8, "int4": 4}  # keys are values of QUANTIZATION
FLOAT_BITS: dict[str, Bits] = {"float32": 32, "bfloat16": 16}
# Forms that nothing is rounded to; keys are types of GGUF.
FILE_BITS: dict[str, Bits] = {"Q5_0": 5, "Q4_K": 104, "Q5_K": 105, "Q6_K": 106}
K_BYTES: dict[int, int] = {104: 144, 105: 176, 106: 210}  # bytes of a superblock, by its form
SUPER_GROUP = 256  # inputs of a superblock
GROUP = 32  # inputs that share a scale
PANEL = 32  # outputs that are packed together
SCALE_BYTES = 2
MAX_HEAD_DIM = 576
CACHE_BYTES = {"float32": 4, "float16": 2, "int8": 1}  # keys: KV_CACHE_DTYPE; values: bytes
CACHE_SCALE_BYTES = 4  # size of the scale behind an int8 key or value


def cache_dtype(kv_cache_dtype: str, bits: Bits) -> str:
    """Returns the KV cache's type beside such weights, by the value of KV_CACHE_DTYPE."""
    if kv_cache_dtype != "auto":
        return kv_cache_dtype
    return "float32" if bits == FLOAT_BITS["float32"] else "float16"


def cache_slot(element_bytes: int, head_dim: int) -> int:
    """Elements of the cache that a key or a value takes: bytes have their scale behind them."""
    return head_dim + (CACHE_SCALE_BYTES if element_bytes == CACHE_BYTES["int8"] else 0)


def group_inputs(bits: Bits) -> int:
    """Returns what the inputs of a packed matrix are a multiple of."""
    return SUPER_GROUP if bits in K_BYTES else GROUP


def packed_bytes(bits: Bits, outputs: int, inputs: int) -> int:
    """Bytes of a packed matrix [outputs, inputs]."""
    panels = -(-outputs // PANEL)
    if bits in K_BYTES:
        return panels * PANEL * (inputs // SUPER_GROUP * K_BYTES[bits])
    scale_bytes = 0 if bits in FLOAT_BITS.values() else SCALE_BYTES
    return panels * PANEL * (inputs * bits // 8 + inputs // GROUP * scale_bytes)
