"""Experts as GGUF files have them: one tensor for all of a layer."""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
NUMBERED = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")


def stacked(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Returns tensors with those of numbered experts as one, under the name without a number."""
    stacks: dict[str, dict[int, Array]] = {}
    others: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if numbered := NUMBERED.fullmatch(name):
            stacks.setdefault(f"{numbered[1]}.{numbered[3]}", {})[int(numbered[2])] = tensor
        else:
            others[name] = tensor
    return others | {
        name: np.stack([stack[number] for number in sorted(stack)])
        for name, stack in stacks.items()
    }
