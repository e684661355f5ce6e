"""Writes and reads heads in the published layout: `config.json`, `medusa_lm_head.safetensors`."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.files import whole_file, write_whole
from inference_api.loading.drafting import CONFIG, WEIGHTS
from inference_api.loading.heads import DRAFT_TOKEN_IDS, TreePath

from .heads import Heads


def export(
    heads: Heads,
    token_ids: Tensor | None,
    paths: Sequence[TreePath],
    folder: Path,
    base_model: str,
    tokenizer_sha256: str,
) -> None:
    """Writes heads as bfloat16. `token_ids` are the tokens that heads can name; None means all."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "medusa_num_heads": heads.num_heads,
        "medusa_num_layers": 1,
        "base_model_name_or_path": base_model,
        "medusa_choices": [list(path) for path in paths],
        "tokenizer_sha256": tokenizer_sha256,
    }
    write_whole(folder / CONFIG, json.dumps(config) + "\n")
    with whole_file(folder / WEIGHTS) as draft:
        save_file(_tensors(heads, token_ids), draft, metadata={"format": "pt"})


def read_into(heads: Heads, folder: Path) -> None:
    """Copies a folder's heads to `heads`. Raises ValueError if their number or shapes differ."""
    stored = load_file(folder / WEIGHTS)
    tensors = _parameters(heads)
    if {name: tensor.shape for name, tensor in tensors.items()} != {
        name: tensor.shape for name, tensor in stored.items() if name != DRAFT_TOKEN_IDS
    }:
        raise ValueError(f"{folder} has heads of another number, variant or size; leave it out.")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(stored[name])


def _tensors(heads: Heads, token_ids: Tensor | None) -> dict[str, Tensor]:
    stored = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in _parameters(heads).items()
    }
    return stored if token_ids is None else stored | {DRAFT_TOKEN_IDS: token_ids.int()}


def _parameters(heads: Heads) -> dict[str, Tensor]:
    """Returns views of the heads' tensors, by their names in the file."""
    tensors = {}
    for k in range(heads.num_heads):
        tensors[f"{k}.0.linear.weight"] = heads.weight[k]
        tensors[f"{k}.0.linear.bias"] = heads.bias[k]
        if heads.is_full:
            tensors[f"{k}.1.weight"] = heads.outputs[k]
    return tensors
