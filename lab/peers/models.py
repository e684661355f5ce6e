"""Makes a model in every contestant's format, once, below var/models."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from common.files import whole_file
from lab.kit.servers import ROOT, environment
from lab.models.gguf_file import TYPES, make_gguf
from lab.models.packaged import FILES, make_packaged
from lab.models.random_model import CONTEXT_TOKENS, SHAPES, make_random_model
from lab.peers.install import LLAMA_CPP, OPENVINO

MODELS = ROOT / "var" / "models"
LONG_TOKENS = 16_384  # a context with room for a prompt of 8,192
NAMES = (*SHAPES, *FILES)


def random_model(name: str, context_tokens: int = CONTEXT_TOKENS) -> Path:
    """Returns the folder of a model with random weights, as our safetensors."""
    context = "" if context_tokens == CONTEXT_TOKENS else f"-{context_tokens}"
    folder = MODELS / f"random-{name}{context}"
    if not (folder / "model.safetensors").exists():
        make_random_model(replace(SHAPES[name], context_tokens=context_tokens), folder)
    return folder


def model_folder(name: str) -> Path:
    """Returns the folder of a model of NAMES, with random weights or those of a package."""
    if name in SHAPES:
        return random_model(name, LONG_TOKENS)
    folder = MODELS / name
    if not (folder / "model.safetensors").exists():
        make_packaged(name, folder, LONG_TOKENS)
    return folder


def gguf_model(folder: Path, type_name: str) -> Path:
    """Returns the model's GGUF file. Types of llama.cpp alone need its quantiser installed."""
    file = folder.with_name(f"{folder.name}.{type_name}.gguf")
    if file.exists():
        return file
    if type_name in TYPES:
        make_gguf(folder, file, type_name)
        return file
    with whole_file(file) as draft:
        exact = str(gguf_model(folder, "BF16"))
        command = [str(LLAMA_CPP.python), "-m", "lab.peers.llama_quantize"]
        subprocess.run(
            [*command, exact, str(draft), type_name],
            cwd=ROOT,
            env=environment(),
            check=True,
            capture_output=True,
        )
    return file


def openvino_model(folder: Path, quantization: str) -> Path:
    """Returns the folder that OpenVINO's exporter makes. The exporter chooses the group size."""
    target = folder.with_name(f"{folder.name}.openvino-{quantization}")
    if target.exists():
        return target
    unfinished = target.with_name(f"{target.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    exporter = str(OPENVINO.python.with_name("optimum-cli"))
    model = ["--model", str(folder), "--task", "text-generation-with-past"]
    subprocess.run(
        [exporter, "export", "openvino", *model, "--weight-format", quantization, str(unfinished)],
        cwd=ROOT,
        env=environment(),
        check=True,
        capture_output=True,
    )
    unfinished.rename(target)
    return target
