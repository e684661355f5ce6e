"""Limits and sizes of the kernels, for planning memory. See `src/layout.h`."""

from typing import Literal, NamedTuple

LAYOUT_VERSION = 3  # version of packed bytes in files: raise it when packing changes
# Forms of weights are numbered by bits: 32 is float32, 16 bfloat16. A form that only GGUF files
# have is numbered 100 + its GGUF type.
_Codes = Literal[116, 117, 118, 119, 121, 122, 129]
Bits = Literal[32, 16, 8, 4, 103, 106, 107, 110, 111, 112, 113, 114, 120, 123, 139, 140] | _Codes
BITS: dict[str, Bits] = {"int8": 8, "int4": 4}  # keys are values of QUANTIZATION
FLOAT_BITS: dict[str, Bits] = {"float32": 32, "bfloat16": 16}
SUPER_GROUP = 256  # inputs of a superblock
GROUP = 32  # inputs that share a scale
PANEL = 32  # outputs that are packed together
SCALE_BYTES = 2
FACTOR_OUTPUTS = 8  # outputs that share a factor in NVFP4


class FileForm(NamedTuple):
    """A GGUF type that is used only as it is in the file. A block has `inputs` and `num_bytes`."""

    bits: Bits
    inputs: int
    num_bytes: int


FILE_FORMS = {
    "Q4_1": FileForm(103, GROUP, 20),
    "Q5_0": FileForm(106, GROUP, 22),
    "Q5_1": FileForm(107, GROUP, 24),
    "Q2_K": FileForm(110, SUPER_GROUP, 84),
    "Q3_K": FileForm(111, SUPER_GROUP, 110),
    "Q4_K": FileForm(112, SUPER_GROUP, 144),
    "Q5_K": FileForm(113, SUPER_GROUP, 176),
    "Q6_K": FileForm(114, SUPER_GROUP, 210),
    "IQ1_S": FileForm(119, SUPER_GROUP, 50),
    "IQ1_M": FileForm(129, SUPER_GROUP, 56),
    "IQ2_XXS": FileForm(116, SUPER_GROUP, 66),
    "IQ2_XS": FileForm(117, SUPER_GROUP, 74),
    "IQ2_S": FileForm(122, SUPER_GROUP, 82),
    "IQ3_XXS": FileForm(118, SUPER_GROUP, 98),
    "IQ3_S": FileForm(121, SUPER_GROUP, 110),
    "IQ4_NL": FileForm(120, GROUP, 18),
    "IQ4_XS": FileForm(123, SUPER_GROUP, 136),
    "MXFP4": FileForm(139, GROUP, 17),
    "NVFP4": FileForm(140, 64, 36),
}
FILE_BITS = {name: form.bits for name, form in FILE_FORMS.items()}
_FILE_FORMS = {form.bits: form for form in FILE_FORMS.values()}
MAX_HEAD_DIM = 576
MAX_STREAMS = 8  # streams of the residual
CACHE_DTYPES = ("float32", "float16", "int8", "int4")  # values of KV_CACHE_DTYPE besides auto
CACHE_SCALE_BYTES = 4  # size of the scale behind an int8 key or value
_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}  # bfloat16: torch alone


def cache_dtype(kv_cache_dtype: str, bits: Bits, has_latents: bool) -> str:
    """Returns the type of the KV cache for a value of KV_CACHE_DTYPE and weights of `bits`.

    With auto, the cache is rounded as the weights are. Latents are not rounded to bytes, because
    all heads read the same one.
    """
    if kv_cache_dtype != "auto":
        return kv_cache_dtype
    if bits == FLOAT_BITS["float32"]:
        return "float32"
    return "float16" if has_latents or bits == FLOAT_BITS["bfloat16"] else "int8"


def cached_bytes(dtype: str, head_dim: int) -> int:
    """Returns the bytes of a cached key or value, with its scales. An int4 one has a scale for
    each group; the last group may be padded."""
    if dtype == "int4":
        return -(-head_dim // GROUP) * (GROUP // 2 + SCALE_BYTES)
    scale_bytes = CACHE_SCALE_BYTES if dtype == "int8" else 0
    return head_dim * _ELEMENT_BYTES[dtype] + scale_bytes


def group_inputs(bits: Bits) -> int:
    """Returns the number that a packed matrix's inputs must be a multiple of."""
    return _FILE_FORMS[bits].inputs if bits in _FILE_FORMS else GROUP


def packed_bytes(bits: Bits, outputs: int, inputs: int) -> int:
    """Returns the bytes of a packed matrix [outputs, inputs]."""
    rows = -(-outputs // PANEL) * PANEL
    if bits in _FILE_FORMS:
        _, block_inputs, block_bytes = _FILE_FORMS[bits]
        return rows * (inputs // block_inputs * block_bytes)
    scale_bytes = 0 if bits in FLOAT_BITS.values() else SCALE_BYTES
    return rows * (inputs * bits // 8 + inputs // GROUP * scale_bytes)
