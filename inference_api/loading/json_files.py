"""Reads the JSON files in a model's folder, without trusting their contents."""

import json
from pathlib import Path
from typing import Any

from common.files import read_bounded
from inference_api.errors import StartupError

MAX_JSON_BYTES = 64 * 1024**2  # tokenizer.json has up to 35 MB
# A value takes up to 200 bytes. A tokenizer of 262,144 tokens has 1.9 million with its merges.
MAX_JSON_VALUES = 3_000_000


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Returns the object in a file; {} if the file is absent and not `required`. Raises
    StartupError that names the file."""
    if not path.is_file():
        if not required:
            return {}
        raise StartupError(f"{path.parent} has no {path.name}; get the model again.")
    try:
        return parse_json(read_bounded(path, MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} cannot be read ({error}); get the file again.") from None


def parse_json(content: bytes) -> dict[str, Any]:
    """Returns the object in a text. Raises ValueError that says what is wrong, in a few words."""
    if (count := sum(map(content.count, (b",", b"[", b"{")))) > MAX_JSON_VALUES:
        raise ValueError(f"it has {count} values, more than {MAX_JSON_VALUES}")
    try:
        value = json.loads(content.decode())
    except RecursionError:
        raise ValueError("its lists and objects are nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
