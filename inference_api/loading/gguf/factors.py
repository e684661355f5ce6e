"""Factors of NVFP4 matrices. A file has one for each matrix, or for each expert of a stack, in a
tensor with `.scale` in its name instead of `.weight`. It may also have `.input_scale`, for
activations in four bits, which is not used here."""

from collections.abc import Container, Mapping
from math import prod
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from inference_api.errors import StartupError
from inference_api.loading.gguf.container import FileTensor

_SCALE, _KINDS = "scale", ("scale", "input_scale")
_EXPERTS = "_exps."  # is in the name of a stack
_NONE = np.full(1, np.nan, np.float32)

Factors = Mapping[str, NDArray[np.float32]]  # keys are names of matrices


def scales(wanted: Container[str], tensors: Mapping[str, FileTensor]) -> dict[str, str]:
    """Returns the names of matrices by the names of their scales, without tensors that the decoder
    needs for something else (`wanted`)."""
    matrices = {}
    for name in tensors:
        stem, _, kind = name.rpartition(".")
        matrix = tensors.get(f"{stem}.weight")
        if matrix is None or matrix.kind != GGMLQuantizationType.NVFP4:
            continue
        if kind in _KINDS and name not in wanted:
            matrices[name] = matrix.name
    return matrices


def factors(
    path: Path, scales: Mapping[str, str], tensors: Mapping[str, FileTensor]
) -> dict[str, NDArray[np.float32]]:
    """Returns the factors of each matrix by its name: one, or one for each expert. Raises
    StartupError."""
    by_matrix, faults = {}, []
    for name, matrix in scales.items():
        if name.endswith(f".{_SCALE}"):
            tensor = tensors[name]
            count = tensors[matrix].shape[0] if _EXPERTS in matrix else 1
            is_sound = tensor.kind == GGMLQuantizationType.F32 and prod(tensor.shape) == count
            by_matrix[matrix] = tensor.read(path).reshape(-1) if is_sound else _NONE
            if not np.isfinite(by_matrix[matrix]).all():
                faults.append(f"{path}: {name} is not {count} finite F32; get the file again.")
    if faults:
        raise StartupError(faults)
    return by_matrix
