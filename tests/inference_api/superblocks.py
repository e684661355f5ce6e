"""Random blocks, drawn as a GGUF file has them: whatever the bytes are, they stand for numbers."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from inference_api.kernels.library import PackedWeight
from inference_api.kernels.packing import FILE_BITS
from inference_api.loading.gguf.panels import write_panels
from tests.inference_api.loading.gguf_copies import rewritten

UNITS = {  # the bytes that are half precision
    **dict.fromkeys(("Q5_0", "IQ4_NL", "IQ4_XS", "IQ1_S", "IQ2_XXS", "IQ2_XS"), slice(0, 2)),
    **dict.fromkeys(("IQ2_S", "IQ3_XXS", "IQ3_S"), slice(0, 2)),
    "IQ1_M": slice(48, 56),  # or have four bits of one each
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), slice(0, 4)),
    "Q2_K": slice(80, 84),
    "Q3_K": slice(108, 110),
    "Q6_K": slice(208, 210),
    "MXFP4": slice(0, 1),  # or exponents
    "NVFP4": slice(0, 4),  # or floats of eight bits
}


def drawn(kind: str, rows: int, inputs: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bytes [rows, …] of weights below 1."""
    generator = np.random.default_rng(seed)
    block, block_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = generator.integers(0, 256, (rows, inputs // block, block_bytes), np.uint8)
    units = data[..., UNITS[kind]]
    if kind == "MXFP4":
        units[:] = generator.integers(115, 118, units.shape)
        return data.reshape(rows, -1)
    if kind == "IQ1_M":
        units[..., 1::2] &= 0x0F
        units[..., 1::2] |= 0x10
        return data.reshape(rows, -1)
    if kind == "NVFP4":
        units[:] = generator.integers(0x00, 0x20, units.shape)
        return data.reshape(rows, -1)
    sizes = generator.uniform(0.0003, 0.0006, (*units.shape[:2], units.shape[2] // 2))
    data[..., UNITS[kind]] = sizes.astype(np.float16).view(np.uint8)
    return data.reshape(rows, -1)


def numbers(kind: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the bytes stand for, by the package that defines them."""
    return np.asarray(gguf.quants.dequantize(data, GGMLQuantizationType[kind]), np.float32)


def packed(kind: str, data: NDArray[np.uint8], first_output: int = 0) -> PackedWeight:
    """As the kernels have them, behind `first_output` outputs of zeros."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    inputs = data.shape[1] // block_bytes * block
    weight = PackedWeight.empty(FILE_BITS[kind], first_output + len(data), inputs)
    write_panels(GGMLQuantizationType[kind], data, weight, first_output)
    return weight


def with_superblocks(source: Path, target: Path, kinds: dict[str, str]) -> Path:
    """A copy of a GGUF file in which matrices are drawn, of the kind that the first fitting ending
    of their names has."""

    def draw(tensors: dict[str, Any]) -> None:
        for index, name in enumerate(sorted(tensors)):
            kind = next((kinds[end] for end in kinds if name.endswith(f"{end}.weight")), None)
            if kind is not None:
                data, stored_as = tensors[name]
                rows, inputs = gguf.quants.quant_shape_from_byte_shape(data.shape, stored_as)
                tensors[name] = (drawn(kind, rows, inputs, index), GGMLQuantizationType[kind])

    return rewritten(source, target, tensors=draw)
