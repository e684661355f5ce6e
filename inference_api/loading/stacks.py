"""Views stacked tensors, which hold the matrices of all experts of a layer, as single tensors.

Most safetensors have single experts. Some have `experts.gate_up_proj` [experts, gates then ups,
hidden] and `experts.down_proj` [experts, hidden, ffn]. In gpt-oss, rows of gate and up alternate,
there are biases, and matrices are transposed, [experts, inputs, outputs], or MXFP4: `_blocks`
[experts, outputs, blocks, bytes] with `_scales` [experts, outputs, blocks]. GGUF has a stack for
each of gate, up and down, and stacks of Gemma 3n's projections of streams.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from inference_api.loading.config import TensorNames
from inference_api.loading.families.mixtures import MAX_EXPERTS

_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(|_bias|_blocks|_scales)")
_SINGLE = re.compile(r"(.*\.(?:experts|altup_(?:unembed_)?projections))\.(\d{1,9})\.(.*)")
_STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_GRANITE_STACKS = {
    "block_sparse_moe.input_linear.weight": "block_sparse_moe.experts.gate_up_proj",
    "block_sparse_moe.output_linear.weight": "block_sparse_moe.experts.down_proj",
}
# End of a stack's name -> end of a single tensor's name, and its number of dimensions. All but the
# first are gpt-oss's.
_ENDS = {
    "": ("weight", 2),
    "_bias": ("bias", 1),
    "_blocks": ("blocks", 3),
    "_scales": ("scales", 2),
}


class Rows(NamedTuple):
    """The rows of a matrix in a file that belong to a tensor: every `step`th from `first` on, after
    transposing the matrix if `is_transposed`."""

    first: int
    step: int
    is_transposed: bool


class Single(NamedTuple):
    """A single tensor of a stack, and its place: a range of the stack's bytes, and `rows` within
    that range; None for all."""

    name: str
    shape: tuple[int, ...]
    begin: int
    end: int
    rows: Rows | None = None


def singles(
    name: str, shape: tuple[int, ...], num_bytes: int, names: TensorNames
) -> Iterator[Single] | None:
    """Returns the tensors in a stack; None if this is no stack, or an invalid one."""
    if names == "granite_hybrid":
        for granite_name, usual_name in _GRANITE_STACKS.items():
            name = name.replace(granite_name, usual_name)
    match = _STACK.fullmatch(name)
    if match is None or not shape or not 1 <= shape[0] <= MAX_EXPERTS:
        return None
    prefix, kinds, end = match[1], _STACKED[match[2]], match[3]
    (suffix, num_dimensions), step, alternates = _ENDS[end], len(kinds), names == "gpt_oss"
    num_experts, *dimensions = shape
    is_transposed = alternates and end == ""
    if is_transposed:
        dimensions.reverse()
    if (end and not alternates) or len(dimensions) != num_dimensions:
        return None
    if dimensions[0] % step or num_bytes % (num_experts * step):
        return None
    each = num_bytes // num_experts
    part, apart = (each, 0) if alternates else (each // step, each // step)
    return (
        Single(
            f"{prefix}.{expert}.{kind}.{suffix}",
            (dimensions[0] // step, *dimensions[1:]),
            expert * each + at * apart,
            expert * each + at * apart + part,
            Rows(at, step, is_transposed) if alternates else None,
        )
        for expert in range(num_experts)
        for at, kind in enumerate(kinds)
    )


class InStack(NamedTuple):
    """The place of a tensor in a stack, and the tensor's name without its number."""

    number: int
    stack: str


def in_stack(name: str) -> InStack | None:
    """Returns the place of a tensor in GGUF's stack; None if GGUF does not stack it."""
    match = _SINGLE.fullmatch(name)
    return None if match is None else InStack(int(match[2]), f"{match[1]}.{match[3]}")
