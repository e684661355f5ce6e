"""Tensors that hold something of all experts of a layer, seen as the single ones they stack.

Safetensors mostly have experts singly; some have `experts.gate_up_proj` [experts, gates and then
what passes them, hidden] and `experts.down_proj` [experts, hidden, ffn]. GGUF has a stack for each
of the three. Loads no torch.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from inference_api.engine.loading.mixture_families import MAX_EXPERTS

_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")
_SINGLE = re.compile(r"(.*\.experts)\.(\d{1,9})\.(.*)")
_STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


class Single(NamedTuple):
    """A part of a stack, and where it is: from one share of the stack's bytes to before another."""

    name: str
    shape: tuple[int, ...]
    begin: int
    end: int


def singles(name: str, shape: tuple[int, ...], num_bytes: int) -> Iterator[Single] | None:
    """What a tensor of safetensors stacks; None when it is no stack, or one that makes no sense."""
    found = _STACK.fullmatch(name)
    if found is None or len(shape) != 3 or not 1 <= shape[0] <= MAX_EXPERTS:
        return None
    kinds = _STACKED[found[2]]
    num_experts, rows, columns = shape[0], shape[1] // len(kinds), shape[2]
    count = num_experts * len(kinds)
    if shape[1] % len(kinds) or num_bytes % count:
        return None
    names = (f"{found[1]}.{e}.{kind}.weight" for e in range(num_experts) for kind in kinds)
    each = num_bytes // count
    return (Single(n, (rows, columns), i * each, (i + 1) * each) for i, n in enumerate(names))


class OfExpert(NamedTuple):
    """The expert that a tensor belongs to, and its name without that number."""

    expert: int
    stack: str


def of_expert(name: str) -> OfExpert | None:
    """Of a single tensor's name in a checkpoint; None for one that is no expert's."""
    found = _SINGLE.fullmatch(name)
    return None if found is None else OfExpert(int(found[2]), f"{found[1]}.{found[3]}")
