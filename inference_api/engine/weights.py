"""From safetensors files to the decoder's parameters, one tensor at a time."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from inference_api.engine.config import ModelConfig
from inference_api.engine.layout import Part, parameter_shape, weight_plan

Parameters = dict[str, Tensor]  # by the names of `weight_plan`


def load_parameters(
    files: Sequence[Path], config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> Parameters:
    """Read every parameter straight to its place, device and precision.

    Beyond the parameters themselves, only the tensor being read takes memory. The caller has
    compared the files' headers with the plan.
    """
    parameters: Parameters = {}
    targets: dict[str, tuple[Part, Tensor]] = {}  # by name in the checkpoint
    for name, parts in weight_plan(config).items():
        parameters[name] = torch.empty(parameter_shape(parts), dtype=dtype, device=device)
        views = parameters[name].split_with_sizes([part.shape[0] for part in parts])
        targets.update({part.name: (part, view) for part, view in zip(parts, views, strict=True)})
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                if name in targets:
                    part, view = targets.pop(name)
                    tensor = tensors.get_tensor(name)
                    view.copy_(ungrouped(tensor, config) if part.is_grouped_qkv else tensor)
    assert not targets, f"headers were checked, yet {sorted(targets)} were not in the files"
    return parameters


def ungrouped(qkv: Tensor, config: ModelConfig) -> Tensor:
    """Rows of [group: queries, key, value] reordered to all queries, all keys, all values."""
    groups = qkv.view(config.num_kv_heads, config.num_groups + 2, config.head_dim, *qkv.shape[1:])
    queries, keys, values = groups.split_with_sizes([config.num_groups, 1, 1], dim=1)
    return torch.cat([part.flatten(0, 2) for part in (queries, keys, values)])
