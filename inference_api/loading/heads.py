"""Reads Medusa heads: the published layout, its shared variant, and what ours add to it.

A folder has `config.json` and `medusa_lm_head.safetensors` or `.pt`. Head k of L layers is
"<k>.<l>.linear.weight" [hidden, hidden] and "<k>.<l>.linear.bias" [hidden] for each layer l, and
"<k>.<L>.weight" [vocab, hidden]; without that one the model's own output head serves. Ours may add
`draft_token_ids` [tokens]: heads guess among these alone.
"""

import hashlib
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from inference_api.errors import StartupError
from inference_api.loading.config import ModelConfig
from inference_api.loading.gguf.files import is_gguf, read_gguf
from inference_api.loading.heads_folder import CONFIG, FILES, heads_file
from inference_api.loading.json_files import read_json

TOKENIZER = "tokenizer.json"  # the model's file
PREFIX = "medusa_head."  # begins names in merged releases
DRAFT_TOKEN_IDS = "draft_token_ids"
MAX_HEADS = 16
MAX_PATHS = 256
ID_DTYPES = (torch.int64, torch.int32)

TreePath = tuple[int, ...]  # for each depth the rank of a head's guess


@dataclass(frozen=True, slots=True)
class MedusaFile:
    """Heads as they are stored, in float32."""

    weights: Sequence[Sequence[Tensor]]  # for each head and layer: [hidden, hidden]
    biases: Sequence[Sequence[Tensor]]  # like weights: [hidden]
    outputs: Sequence[Tensor] | None  # for each head: [vocab, hidden]; None: the model's own
    token_ids: Tensor | None  # [tokens] int64, ascending: tokens to guess among; None: all
    paths: Sequence[TreePath]  # the tree's, shorter ones first; () where none is given
    tokenizer_sha256: str | None


def read_heads(folder: Path, config: ModelConfig) -> MedusaFile:
    """Heads for the model that `config` describes. Raises StartupError naming what does not fit.

    How many heads and layers there are is counted: published configurations are known to be wrong.
    """
    file = heads_file(folder)
    if file is None:
        raise StartupError([f"{folder} has none of {', '.join(FILES)}; get the heads again."])
    tensors = _tensors(file, config)
    num_heads = _count(tensors, r"(\d+)\.\d+\.linear\.weight")
    num_layers = _count(tensors, r"0\.(\d+)\.linear\.weight")
    if not 1 <= num_heads <= MAX_HEADS or num_layers < 1:
        _unusable(file, f"it has {num_heads} heads of {num_layers} layers; 1 to {MAX_HEADS} serve")
    hidden = config.hidden_size

    def stack(name: str, shape: tuple[int, ...]) -> list[list[Tensor]]:
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
    """What heads keep of the tokenizer they were trained beside: the hash of `tokenizer.json`, or
    of a GGUF file's tokens, a line each."""
    if is_gguf(model_dir):
        tokens = read_gguf(model_dir).metadata["tokenizer.ggml.tokens"]
        return hashlib.sha256("\n".join(tokens).encode()).hexdigest()
    return hashlib.sha256((model_dir / TOKENIZER).read_bytes()).hexdigest()


def _tensors(file: Path, config: ModelConfig) -> Mapping[str, Tensor]:
    """Returns the file's tensors by their published names. Nothing in the file is run."""
    most = MAX_HEADS * (config.vocab_size + 8 * config.hidden_size) * config.hidden_size * 4
    if (size := file.stat().st_size) > most:
        _unusable(file, f"it has {size} bytes, and heads of this model at most {most}")
    try:
        if file.suffix == ".pt":
            found = torch.load(file, map_location="cpu", weights_only=True)
        else:
            found = load_file(file)
    except (SafetensorError, RuntimeError, ValueError, OSError, EOFError) as error:
        _unusable(file, str(error).split("\n")[0])
    except pickle.UnpicklingError:
        _unusable(file, "it holds more than tensors")
    if not isinstance(found, dict):
        _unusable(file, "it holds no tensors by name")
    return {
        str(name).removeprefix(PREFIX): tensor
        for name, tensor in found.items()
        if isinstance(tensor, Tensor)
    }


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    numbers = [match[1] for name in tensors if (match := re.fullmatch(pattern, name))]
    return 1 + max((int(number) for number in numbers if len(number) < 4), default=-1)


def _tensor(file: Path, tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        _unusable(file, f"it lacks {name}")
    if tuple(tensor.shape) != shape or not tensor.dtype.is_floating_point:
        _unusable(
            file, f"{name} is {list(tensor.shape)} and for this model it has to be {list(shape)}"
        )
    tensor = tensor.float()
    if not tensor.isfinite().all():
        _unusable(file, f"{name} has numbers that are not finite")
    return tensor


def _outputs(
    file: Path,
    tensors: Mapping[str, Tensor],
    num_heads: int,
    num_layers: int,
    config: ModelConfig,
) -> Sequence[Tensor] | None:
    """Returns the heads' output matrices, if any. Their vocabulary may lack the model's padding."""
    names = [f"{head}.{num_layers}.weight" for head in range(num_heads)]
    if not any(name in tensors for name in names):
        return None
    first = tensors.get(names[0])
    vocab_size = 0 if first is None else len(first)
    if not 0 < vocab_size <= config.vocab_size:
        _unusable(
            file, f"its heads guess {vocab_size} tokens and the model has {config.vocab_size}"
        )
    shape = (vocab_size, config.hidden_size)
    return [_tensor(file, tensors, name, shape) for name in names]


def _token_ids(file: Path, tensors: Mapping[str, Tensor], vocab_size: int) -> Tensor | None:
    ids = tensors.get(DRAFT_TOKEN_IDS)
    if ids is None:
        return None
    is_list = ids.ndim == 1 and 0 < len(ids) <= vocab_size and ids.dtype in ID_DTYPES
    ids = ids.long() if is_list else ids.new_full((1,), -1)
    if not (ids[1:] > ids[:-1]).all() or ids[0] < 0 or ids[-1] >= vocab_size:
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
            [
                f"{folder / CONFIG}: medusa_choices has to be a list of at most {MAX_PATHS} lists "
                "of ranks, with all that each begins with; correct it or remove it."
            ]
        )
    return [path for path in ordered if len(path) <= num_heads]


def _unusable(file: Path, fault: str) -> NoReturn:
    raise StartupError(
        [f"{file} cannot serve as Medusa heads: {fault}; set MEDUSA_HEADS to heads of this model."]
    )
