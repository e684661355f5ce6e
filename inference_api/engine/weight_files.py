"""The weights of a model: which files they are in and what the files' headers say.

Loads no torch and reads no weights.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from inference_api.engine.config import ModelConfig
from inference_api.engine.gguf_files import is_gguf, read_gguf
from inference_api.engine.layout import shown, weight_plan
from inference_api.errors import StartupError

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8  # a file begins with the length of its JSON header
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format

Shapes = Mapping[str, tuple[int, ...]]  # by tensor name


def weight_files(folder: Path) -> list[Path]:
    """The files that make up the model in a folder, or in one GGUF file.

    Raises StartupError when some are missing.
    """
    if is_gguf(folder):
        return [folder]
    files = [folder / name for name in _file_names(folder)]
    missing = [file.name for file in files if not file.is_file()]
    if not missing:
        return files
    if any(folder.glob("*.bin")):
        raise StartupError(
            [
                f"{folder} has only .bin weights, which can run code when they are read; convert "
                "them to safetensors with transformers: load the model, then save_pretrained."
            ]
        )
    raise StartupError(
        [f"{folder} lacks weights: {shown(missing)}; get the model again, in safetensors format."]
    )


def read_header(file: Path) -> Shapes:
    """Names, those of a safetensors file, and shapes of the tensors in one file.

    Raises StartupError when it is cut short or not what its name says.
    """
    if is_gguf(file):
        return read_gguf(file).shapes
    broken = StartupError([f"{file} is damaged or incomplete; get the file again."])
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        if not 2 <= header_bytes <= min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
            raise broken
        try:
            header = json.loads(stream.read(header_bytes))
            header.pop("__metadata__", None)
            shapes = {name: tuple(tensor["shape"]) for name, tensor in header.items()}
            weight_bytes = max(tensor["data_offsets"][1] for tensor in header.values())
        except (ValueError, AttributeError, LookupError, TypeError):
            raise broken from None
    if size != LENGTH_BYTES + header_bytes + weight_bytes:
        raise broken
    return shapes


def read_headers(files: Sequence[Path]) -> Shapes:
    """Names and shapes of all tensors in `files`. Raises StartupError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes.update(read_header(file))
    return shapes


def shape_faults(shapes: Shapes, config: ModelConfig) -> list[str]:
    """Tensors the decoder needs that are missing or not of the shape config.json implies."""
    parts = [part for parts in weight_plan(config).values() for part in parts]
    missing = [part.name for part in parts if part.name not in shapes]
    misshapen = [
        f"{part.name} is {list(shapes[part.name])} instead of {list(part.shape)}"
        for part in parts
        if part.name in shapes and shapes[part.name] != part.shape
    ]
    faults = []
    if missing:
        faults.append(f"The weights lack {shown(missing)}; get the model again.")
    if misshapen:
        faults.append(
            f"The weights do not fit config.json: {shown(misshapen)}; get the model again."
        )
    return faults


def _file_names(folder: Path) -> list[str]:
    index = folder / WEIGHTS_INDEX
    if not index.exists():
        return [WEIGHTS]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, AttributeError, LookupError, TypeError):
        names = []
    if not names or not all(isinstance(name, str) for name in names):
        raise StartupError([f"{index} names no weights; get the file again."])
    return names
