"""Reads Medusa heads: the published format, its variant without output matrices, and Hearth's
additions.

A folder has `config.json` and `medusa_lm_head.safetensors`. Head k of L layers is
"<k>.<l>.linear.weight" [hidden, hidden] and "<k>.<l>.linear.bias" [hidden] for each layer l, and
"<k>.<L>.weight" [vocab, hidden]. Without the last, the model's own output head is used. Heads
trained by Hearth may have `draft_token_ids` [tokens], and then guess only these tokens.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.loading.config import ModelConfig
from inference_api.loading.drafting import CONFIG, PICKLE, WEIGHTS, heads_file
from inference_api.loading.files import TensorLocation, opened, read_numbers, stored_places
from inference_api.loading.gguf import is_gguf, read_gguf
from inference_api.loading.json_files import read_json
from inference_api.loading.numbers import FLOATS
from inference_api.loading.sentence_pieces import SENTENCE_PIECES
from inference_api.loading.tokenizer_files import TOKENIZER

PREFIX = "medusa_head."  # prefix of names in merged releases
DRAFT_TOKEN_IDS = "draft_token_ids"
MAX_HEADS = 16
MAX_PATHS = 256
ID_KINDS = ("I64", "I32")

TreePath = tuple[int, ...]  # for each depth the rank of a head's guess


@dataclass(frozen=True, slots=True)
class MedusaFile:
    """Heads as stored, converted to float32."""

    weights: Sequence[Sequence[Floats]]  # for each head and layer: [hidden, hidden]
    biases: Sequence[Sequence[Floats]]  # for each head and layer: [hidden]
    outputs: Sequence[Floats] | None  # for each head: [vocab, hidden]; None: the model's own
    token_ids: NDArray[np.int64] | None  # [tokens] that are guessed, ascending; None: all
    paths: Sequence[TreePath]  # the tree's, shorter ones first; () if none is given
    tokenizer_sha256: str | None


def read_heads(folder: Path, config: ModelConfig) -> MedusaFile:
    """Returns the heads for the model that `config` describes. Raises StartupError if they do not
    fit. Heads and layers are counted in the file, because published configurations are often
    wrong."""
    file = _file_of(folder, config)
    tensors = stored_places(file, lambda name: name.removeprefix(PREFIX))
    num_heads = _count(tensors, r"(\d+)\.\d+\.linear\.weight")
    num_layers = _count(tensors, r"0\.(\d+)\.linear\.weight")
    if not 1 <= num_heads <= MAX_HEADS or num_layers < 1:
        _unusable(file, f"it has {num_heads} heads of {num_layers} layers; 1 to {MAX_HEADS} serve")
    hidden = config.hidden_size

    def stack(name: str, shape: tuple[int, ...]) -> list[list[Floats]]:
        names = [[f"{k}.{at}.{name}" for at in range(num_layers)] for k in range(num_heads)]
        return [[_tensor(file, tensors, each, shape) for each in of_head] for of_head in names]

    weights = stack("linear.weight", (hidden, hidden))
    biases = stack("linear.bias", (hidden,))
    outputs = _outputs(file, tensors, num_heads, num_layers, config)
    description = read_json(folder / CONFIG, required=False)
    return MedusaFile(
        weights,
        biases,
        outputs,
        _token_ids(file, tensors, len(outputs[0]) if outputs else config.vocab_size),
        _paths(folder, description, num_heads),
        description.get("tokenizer_sha256"),
    )


def tokenizer_sha256(model_dir: Path) -> str:
    """Returns the hash by which heads identify the tokenizer they were trained with. It is a hash
    of the tokenizer's file, or of a GGUF file's tokens, one on each line."""
    if is_gguf(model_dir):
        tokens = read_gguf(model_dir).file.metadata["tokenizer.ggml.tokens"]
        return hashlib.sha256("\n".join(tokens).encode()).hexdigest()
    file = model_dir / TOKENIZER
    file = file if file.is_file() else model_dir / SENTENCE_PIECES
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _file_of(folder: Path, config: ModelConfig) -> Path:
    """Returns the heads' file. Raises StartupError if there is none that can be read."""
    file = heads_file(folder)
    if file is None:
        raise StartupError(f"{folder} has no {WEIGHTS}; get the heads again.")
    if file.name == PICKLE:
        raise StartupError(
            f"{file} is a pickle, which can run code when it is read; make it safetensors: "
            f"python -m scripts.convert_heads {folder}"
        )
    most = MAX_HEADS * (config.vocab_size + 8 * config.hidden_size) * config.hidden_size * 4
    if (size := file.stat().st_size) > most:
        _unusable(file, f"it has {size} bytes, and heads of this model at most {most}")
    return file


def _count(tensors: Mapping[str, TensorLocation], pattern: str) -> int:
    numbers = [match[1] for name in tensors if (match := re.fullmatch(pattern, name))]
    return 1 + max((int(number) for number in numbers if len(number) < 4), default=-1)


def _tensor(
    file: Path, tensors: Mapping[str, TensorLocation], name: str, shape: tuple[int, ...]
) -> Floats:
    place = tensors.get(name)
    if place is None:
        _unusable(file, f"it lacks {name}")
    stored_shape, kind = place.stored
    if stored_shape != shape or kind not in FLOATS:
        _unusable(
            file,
            f"{name} is {kind} of {list(stored_shape)} and for this model it has to be floats of "
            f"{list(shape)}",
        )
    with opened(file) as stream:
        numbers = read_numbers(stream, name, place).floats()
    if not np.isfinite(numbers).all():
        _unusable(file, f"{name} has numbers that are not finite")
    return numbers


def _outputs(
    file: Path,
    tensors: Mapping[str, TensorLocation],
    num_heads: int,
    num_layers: int,
    config: ModelConfig,
) -> Sequence[Floats] | None:
    """Returns the heads' output matrices, if any. They may lack the vocabulary's padding."""
    names = [f"{head}.{num_layers}.weight" for head in range(num_heads)]
    if not any(name in tensors for name in names):
        return None
    first = tensors.get(names[0])
    vocab_size = 0 if first is None or not first.stored.shape else first.stored.shape[0]
    if not 0 < vocab_size <= config.vocab_size:
        _unusable(
            file, f"its heads guess {vocab_size} tokens and the model has {config.vocab_size}"
        )
    shape = (vocab_size, config.hidden_size)
    return [_tensor(file, tensors, name, shape) for name in names]


def _token_ids(
    file: Path, tensors: Mapping[str, TensorLocation], vocab_size: int
) -> NDArray[np.int64] | None:
    place = tensors.get(DRAFT_TOKEN_IDS)
    if place is None:
        return None
    shape, kind = place.stored
    ids = np.full(1, -1)
    if len(shape) == 1 and 0 < shape[0] <= vocab_size and kind in ID_KINDS:
        with opened(file) as stream:
            numbers = read_numbers(stream, DRAFT_TOKEN_IDS, place, ID_KINDS)
        ids = numbers.data.astype(np.int64)
    if (ids[1:] <= ids[:-1]).any() or ids[0] < 0 or ids[-1] >= vocab_size:
        _unusable(
            file,
            f"{DRAFT_TOKEN_IDS} has to list integers that ascend between 0 and {vocab_size - 1}, "
            "the last token that the heads know",
        )
    return ids


def _paths(folder: Path, description: Mapping[str, Any], num_heads: int) -> Sequence[TreePath]:
    """Returns `medusa_choices` without paths longer than the number of heads."""
    choices = description.get("medusa_choices", [])
    is_valid = isinstance(choices, list) and len(choices) <= MAX_PATHS
    is_valid = is_valid and all(
        isinstance(path, list)
        and path
        and all(isinstance(rank, int) and 0 <= rank < MAX_PATHS for rank in path)
        for path in choices
    )
    paths = dict.fromkeys(tuple(path) for path in choices) if is_valid else {}
    ordered = sorted(paths, key=len)
    if not is_valid or any(path[:-1] not in paths for path in ordered if len(path) > 1):
        raise StartupError(
            f"{folder / CONFIG}: medusa_choices has to be a list of at most {MAX_PATHS} lists "
            "of ranks, with all that each begins with; correct it or remove it."
        )
    return [path for path in ordered if len(path) <= num_heads]


def _unusable(file: Path, fault: str) -> NoReturn:
    raise StartupError(
        f"{file} cannot serve as Medusa heads: {fault}; set MEDUSA_HEADS to heads of this model."
    )
