"""Finds what drafts for a model: Medusa heads, another model, or an assistant."""

from dataclasses import replace
from pathlib import Path

from inference_api.errors import StartupError
from inference_api.loading.config import ModelConfig
from inference_api.loading.families.gemma import ASSISTANTS
from inference_api.loading.families.read import read_config
from inference_api.loading.hub import fetch, is_hub_id, path_of
from inference_api.loading.json_files import read_json
from inference_api.loading.tokenizer_files import vocabulary_difference

FOLDER = "medusa"  # in the model's folder
WEIGHTS, PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
CONFIG = "config.json"


def find_heads(model_dir: Path, medusa_heads: str | None) -> Path | None:
    """Returns the folder that MEDUSA_HEADS names, else the one in the model's folder, or None.
    Raises StartupError if MEDUSA_HEADS names no folder."""
    if medusa_heads is None:
        default = model_dir / FOLDER
        return default if heads_file(default) is not None else None
    folder = path_of(medusa_heads, "MEDUSA_HEADS")
    if folder.is_dir():
        return folder
    if is_hub_id(medusa_heads):
        return fetch(medusa_heads, [CONFIG, WEIGHTS, PICKLE], setting="MEDUSA_HEADS")
    raise StartupError(
        f"MEDUSA_HEADS={medusa_heads} is no folder here and no name on the hub; correct it."
    )


def known_heads(model_dir: Path, medusa_heads: str | None) -> Path | None:
    """Like `find_heads`, but returns None for heads on a hub. They are downloaded when they are
    loaded, and count from then on."""
    is_here = medusa_heads is None or not is_hub_id(medusa_heads) or Path(medusa_heads).is_dir()
    return find_heads(model_dir, medusa_heads) if is_here else None


def heads_bytes(folder: Path) -> int:
    """Returns a lower bound of the heads' memory: the size of their file."""
    file = heads_file(folder)
    return 0 if file is None else file.stat().st_size


def heads_file(folder: Path) -> Path | None:
    """Returns the file with the heads' weights, or None. A pickle has to be converted first."""
    files = (folder / name for name in (WEIGHTS, PICKLE))
    return next((file for file in files if file.is_file()), None)


def draft_faults(
    model_dir: Path, draft_dir: Path, draft: ModelConfig, setting: str = "DRAFT_MODEL"
) -> list[str]:
    """Returns why the second model, which a setting names and `draft` describes, cannot draft for
    the first. Raises StartupError if a vocabulary cannot be read."""
    if draft.recurrent is not None:
        return [
            f"{setting}={draft_dir} has recurrent layers, which forget no guesses; name a model "
            f"without or unset {setting}."
        ]
    differing = vocabulary_difference(model_dir, draft_dir)
    if differing is None:
        return []
    return [
        f"{setting}={draft_dir} cannot draft for {model_dir}: the vocabularies differ, "
        f"{differing}; name a model of the same family or unset {setting}."
    ]


def is_assistant(folder: Path) -> bool:
    """Returns whether a folder has an assistant, which drafts with another model's keys and values,
    and not a whole model. Raises StartupError."""
    return folder.is_dir() and read_json(folder / CONFIG).get("model_type") in ASSISTANTS


def assistant_config(folder: Path, model: ModelConfig, setting: str = "DRAFT_MODEL") -> ModelConfig:
    """Returns the configuration of an assistant, which a setting names. Raises StartupError if it
    cannot draft for this model."""
    config = read_config(read_json(folder / CONFIG), ASSISTANTS)
    pairs = zip(config.windows, config.layer_shapes, strict=True)
    needed = {(window, shape.num_kv_heads, shape.head_dim) for window, shape in pairs}
    available = {
        (window and window + 1, *model.shape_of(layer)[:2])
        for window, layer in ((model.windows[layer], layer) for layer in kv_layers(model).values())
    }
    sizes = (config.backbone_size, config.vocab_size)
    if sizes != (model.hidden_size, model.vocab_size) or not needed <= available:
        raise StartupError(
            f"{setting}={folder} drafts for a model with other sizes; name the assistant of this "
            f"model, or unset {setting}."
        )
    return config


def assisted(model: ModelConfig) -> ModelConfig:
    """Returns the configuration of a model for which an assistant drafts."""
    return replace(model, window_margin=2)


def kv_layers(model: ModelConfig) -> dict[bool, int]:
    """Returns the layers whose keys and values assistants read: the last layer with a window (key
    True) and the last one without (key False), among those with keys and values of their own."""
    layers = [n for n, shape in enumerate(model.layer_shapes) if shape.kv_source is None]
    return {model.windows[layer] is not None: layer for layer in layers}
