"""The same model of random weights in every contestant's format, made once, below var/models."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from lab.kit.servers import ROOT, environment
from lab.models.gguf_file import make_gguf
from lab.models.random_model import CONTEXT_TOKENS, SHAPES, make_random_model
from lab.peers.install import OPENVINO

MODELS = ROOT / "var" / "models"


def random_model(name: str, context_tokens: int = CONTEXT_TOKENS) -> Path:
    """The folder with our safetensors."""
    context = "" if context_tokens == CONTEXT_TOKENS else f"-{context_tokens}"
    folder = MODELS / f"random-{name}{context}"
    if not (folder / "model.safetensors").exists():
        make_random_model(replace(SHAPES[name], context_tokens=context_tokens), folder)
    return folder


def gguf_model(folder: Path, type_name: str) -> Path:
    file = folder.with_name(f"{folder.name}.{type_name}.gguf")
    if not file.exists():
        make_gguf(folder, file, type_name)
    return file


def openvino_model(folder: Path, quantization: str) -> Path:
    """Returns the folder that OpenVINO's exporter makes, with its own choice of groups."""
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
