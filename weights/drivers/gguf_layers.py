"""Reads the number of layers from a GGUF file, or from a folder with a config.json."""

import json
from pathlib import Path

from common.files import read_bounded
from common.gguf_header import GgufHeader
from weights.errors import EngineUnusable

MAX_CONFIG_BYTES = 2**20
MAX_LAYERS = 1024


def read_num_layers(model: Path) -> int:
    """Returns the number of layers. Raises EngineUnusable."""
    try:
        count = _of_folder(model) if model.is_dir() else _of_file(model)
    except (OSError, ValueError, KeyError, IndexError, RecursionError) as error:
        raise EngineUnusable(
            f"{model} does not tell its layers ({type(error).__name__}: {error}); give --layers"
        ) from None
    if not isinstance(count, int) or not 2 <= count <= MAX_LAYERS:
        raise EngineUnusable(f"{model} says {count!r} layers, and 2 to {MAX_LAYERS} can be split")
    return count


def _of_file(file: Path) -> object:
    with file.open("rb") as stream:
        metadata = GgufHeader(stream).metadata
    return metadata[f"{metadata['general.architecture']}.block_count"]


def _of_folder(folder: Path) -> object:
    config = json.loads(read_bounded(folder / "config.json", MAX_CONFIG_BYTES))
    if not isinstance(config, dict):
        raise ValueError("config.json is no object")
    return config.get("text_config", config)["num_hidden_layers"]
