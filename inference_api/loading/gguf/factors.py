"""Factors of NVFP4 matrices. A file has one for each matrix, or for each expert of a stack, in a
tensor with `.scale` in its name instead of `.weight`. It may also have `.input_scale`, for
activations in four bits, which is not used here."""

from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, ReaderTensor
from numpy.typing import NDArray

from inference_api.errors import StartupError

_SCALE, _KINDS = "scale", ("scale", "input_scale")
_EXPERTS = "_exps."  # is in the name of a stack

Factors = Mapping[str, NDArray[np.float32]]  # keys are names of matrices


def scales(wanted: Container[str], tensors: Mapping[str, ReaderTensor]) -> dict[str, str]:
    """Returns the names of matrices by the names of their scales, without tensors that the decoder
    needs for something else (`wanted`)."""
    found = {}
    for name in tensors:
        stem, _, kind = name.rpartition(".")
        matrix = tensors.get(f"{stem}.weight")
        if matrix is None or matrix.tensor_type != GGMLQuantizationType.NVFP4:
            continue
        if kind in _KINDS and name not in wanted:
            found[name] = matrix.name
    return found


def factors(
    path: Path, scales: Mapping[str, str], tensors: Mapping[str, ReaderTensor]
) -> dict[str, NDArray[np.float32]]:
    """Returns the factors of each matrix by its name: one, or one for each expert. Raises
    StartupError."""
    found, faults = {}, []
    for name, matrix in scales.items():
        if name.endswith(f".{_SCALE}"):
            numbers = tensors[name].data
            count = int(tensors[matrix].shape[-1]) if _EXPERTS in matrix else 1
            is_sound = numbers.dtype == np.float32 and numbers.size == count
            if not (is_sound and np.isfinite(numbers).all()):
                faults.append(f"{path}: {name} is not {count} finite F32; get the file again.")
            found[matrix] = numbers.reshape(-1).copy()
    if faults:
        raise StartupError(faults)
    return found
