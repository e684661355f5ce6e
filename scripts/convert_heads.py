"""Converts published Medusa heads from a pickle, `medusa_lm_head.pt`, to safetensors.

    python -m scripts.convert_heads FOLDER [--output FOLDER]

FOLDER may be a hub id. No code in the pickle is run. Needs torch and safetensors.
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from common.files import whole_file
from inference_api.loading.drafting import CONFIG, PICKLE, WEIGHTS, find_heads


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert Medusa heads to safetensors.")
    parser.add_argument("heads", help="folder or hub id")
    parser.add_argument("--output", type=Path, help="folder; default: that of the heads")
    arguments = parser.parse_args()
    folder = find_heads(Path(), arguments.heads)
    assert folder is not None
    print(convert(folder, arguments.output or folder))


def convert(folder: Path, output: Path) -> Path:
    """Writes the heads, and a copy of their config.json, to `output`. Returns the heads' file."""
    loaded = torch.load(folder / PICKLE, map_location="cpu", weights_only=True)
    tensors = {
        str(name): tensor.contiguous().clone()
        for name, tensor in loaded.items()
        if isinstance(tensor, torch.Tensor)
    }
    output.mkdir(parents=True, exist_ok=True)
    if (folder / CONFIG).is_file() and output != folder:
        shutil.copy(folder / CONFIG, output)
    with whole_file(output / WEIGHTS) as draft:
        save_file(tensors, draft)
    return output / WEIGHTS


if __name__ == "__main__":
    main()
