"""Keys and values as a cache of int4 has them, by torch: see `CachedGroup` in `kernels.h`."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from inference_api.kernels.packing import GROUP, SCALE_BYTES

HALF = GROUP // 2


def rotation(head_dim: int) -> Tensor:
    """Of vectors, by the largest Walsh-Hadamard matrix that divides them: twice multiplies by its
    size."""
    size, matrix = head_dim & -head_dim, torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return torch.kron(torch.eye(head_dim // size), matrix)


def grouped(vectors: Tensor) -> Tensor:
    """[…, groups, GROUP], the last group filled up with zeros."""
    filled: Tensor = pad(vectors, (0, -vectors.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
    return filled


def as_groups(vectors: Tensor) -> Tensor:
    """Rotated, then 4 bits of a scale each, which is before its group."""
    groups = grouped(vectors @ rotation(vectors.shape[-1]))
    farthest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scales = (farthest / -8).half()
    steps = (groups / scales).round().clamp(-8, 7).int()
    packed = steps[..., :HALF] * 16 + (steps[..., HALF:] & 15)
    return torch.cat([scales.view(torch.uint8), (packed & 255).byte()], -1).flatten(-2)


def of_groups(cache: Tensor, head_dim: int) -> Tensor:
    """The vectors, rotated back, in double precision."""
    groups = cache.unflatten(-1, (-1, SCALE_BYTES + HALF))
    scales = groups[..., :SCALE_BYTES].contiguous().view(torch.half)
    packed = groups[..., SCALE_BYTES:].view(torch.int8)
    steps = torch.cat([packed >> 4, packed << 4 >> 4], -1)
    rotated: Tensor = (steps.double() * scales.double()).flatten(-2)[..., :head_dim]
    return rotated @ rotation(head_dim).double() / (head_dim & -head_dim)
