"""Models on the Hugging Face hub. Downloads go to the hub's own cache (HF_HOME)."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from common.paths import expanded
from inference_api.errors import StartupError
from inference_api.loading.layout import StoredTensor, Tensors, name_of_text_model

DESCRIPTION_FILES = ["*.json", "*.jinja", "tokenizer.model"]  # configuration, tokenizer: small
WEIGHT_FILES = ["*.safetensors"]
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_id(model: str) -> bool:
    """Returns whether `model` could be the id of a model on the hub: owner/name."""
    return HUB_ID.fullmatch(model) is not None


def path_of(source: str, setting: str) -> Path:
    """Returns `source`, the value of a setting, as a path on this machine. Raises StartupError."""
    try:
        return expanded(source)
    except ValueError as error:
        raise StartupError(f"{setting}={source!r:.200}: {error}.") from None


def fetch(model: str, patterns: Sequence[str], setting: str = "MODEL") -> Path:
    """Returns the folder of a hub model, with the files that match, downloaded unless cached.
    Raises StartupError that names `setting`."""
    from huggingface_hub import snapshot_download

    with _faults_named(model, setting):
        return Path(snapshot_download(model, allow_patterns=[*patterns]))


def stored_tensors(model: str) -> Tensors:
    """Returns a hub model's tensors, from the headers of its files. Raises StartupError."""
    from huggingface_hub import get_safetensors_metadata

    with _faults_named(model):
        files = get_safetensors_metadata(model).files_metadata.values()
    return {
        name_of_text_model(name): StoredTensor(tuple(tensor.shape), tensor.dtype)
        for file in files
        for name, tensor in file.tensors.items()
    }


@contextmanager
def _faults_named(model: str, setting: str = "MODEL") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # network, hub and disk libraries each raise their own errors
        reason = str(error).strip().split("\n")[0]
        raise StartupError(
            f"{setting}={model} is no folder here and cannot be fetched from the hub "
            f"({reason}); correct it, or set HF_TOKEN if the model is gated."
        ) from error
