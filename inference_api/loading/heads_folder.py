"""Finds a model's Medusa heads, and their size."""

from pathlib import Path

from inference_api.errors import StartupError
from inference_api.loading.hub import fetch, is_hub_id

FOLDER = "medusa"  # in the model's folder
WEIGHTS, PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
CONFIG = "config.json"


def find_heads(model_dir: Path, medusa_heads: str | None) -> Path | None:
    """Returns the folder that MEDUSA_HEADS names, else the one in the model's folder, or None.
    Raises StartupError if MEDUSA_HEADS names no folder."""
    if medusa_heads is None:
        own = model_dir / FOLDER
        return own if heads_file(own) is not None else None
    folder = Path(medusa_heads).expanduser()
    if folder.is_dir():
        return folder
    if is_hub_id(medusa_heads):
        return fetch(medusa_heads, [CONFIG, WEIGHTS, PICKLE], setting="MEDUSA_HEADS")
    raise StartupError(
        f"MEDUSA_HEADS={medusa_heads} is no folder here and no name on the hub; correct it."
    )


def heads_bytes(folder: Path) -> int:
    """Returns a lower bound of the heads' memory: the size of their file."""
    file = heads_file(folder)
    return 0 if file is None else file.stat().st_size


def heads_file(folder: Path) -> Path | None:
    """Returns the file with the heads' weights, or None. A pickle has to be converted first."""
    files = (folder / name for name in (WEIGHTS, PICKLE))
    return next((file for file in files if file.is_file()), None)
