"""Reads a GGUF file: configuration, tokenizer metadata, and the places of its tensors.

A file that is damaged, or has a tensor with no known use, is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.gguf_header import Unreadable
from inference_api.errors import StartupError, shown
from inference_api.loading.config import ModelConfig
from inference_api.loading.families.fields import MOST
from inference_api.loading.families.layer_plan import LAYER_INPUTS, SourceTensor
from inference_api.loading.families.read import read_config
from inference_api.loading.gguf import BLOCK_BITS, IN_HALVES, SUFFIX
from inference_api.loading.gguf import factors as nvfp4
from inference_api.loading.gguf import tokenizer as gguf_tokenizer
from inference_api.loading.gguf.config import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, raw_config
from inference_api.loading.gguf.container import FileTensor, GgufFile, read_container
from inference_api.loading.gguf.names import (
    FUSED,
    KNOWN_ARCHITECTURES,
    gguf_names,
    halves_of,
    squeezed,
)
from inference_api.loading.layout import EMBEDDING, StoredTensor, Tensors, mtp_plan, weight_plan
from inference_api.loading.numbers import FLOATS
from inference_api.loading.stacks import in_stack

ROPE_TENSORS = {ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS}
EMBEDDINGS = {"token_embd.weight": EMBEDDING, "per_layer_token_embd.weight": LAYER_INPUTS}
LAYER = re.compile(r"blk\.(\d{1,9})\.")
GROUPED_NORM = ".ssm_norm."  # Mamba-2's has a row for each group
PART = re.compile(r"(?P<model>.+)-\d{5}-of-\d{5}\.gguf")
MAX_PARTS = 65_535  # files of a split model; the count has 16 bits


class Halves(NamedTuple):
    """The two tensors with which newer files project DeepSeek's latents to keys and values."""

    keys: FileTensor  # [heads, rank, unturned dimensions of a key]
    values: FileTensor  # [heads, value_dim, rank]


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The model of a file. `tensors` are keyed by the names of `weight_plan`, `factors` by names in
    the file, as what `file` has."""

    architecture: str
    config: ModelConfig
    file: GgufFile
    tensors: Mapping[str, FileTensor]
    halves: Mapping[str, Halves]
    factors: nvfp4.Factors

    @property
    def stored(self) -> Tensors:
        stored = {
            name: StoredTensor(tensor.shape, tensor.kind.name)
            for name, tensor in self.tensors.items()
        }
        return stored | {name: _stored(halves) for name, halves in self.halves.items()}


def read_gguf(path: Path) -> GgufModel:
    """Returns the contents of a file. Raises StartupError if it is damaged, or its model cannot be
    served.

    The result is cached until the file changes, because some lists take a second to read.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise StartupError([f"{path} cannot be read ({error}); correct MODEL."]) from None
    return _read(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1)
def _read(path: Path, size: int, modified_ns: int) -> GgufModel:
    try:
        container = read_container(path)
        metadata, tensors = container.metadata, container.tensors
        _check_whole(path, metadata)
        container.check_extent(size)
    except Unreadable as error:
        raise StartupError([f"{path}: {error}."]) from None
    except (OSError, ValueError, LookupError) as error:
        raise StartupError([f"{path} is damaged or incomplete ({error}); get it again."]) from None
    architecture = str(metadata.get("general.architecture"))
    if architecture not in KNOWN_ARCHITECTURES:
        raise StartupError(
            f"{path} has the architecture {architecture!r}, which is not supported; choose a "
            f"model of one of these: {', '.join(sorted(KNOWN_ARCHITECTURES))}."
        )
    config = _config(path, architecture, metadata, tensors)
    stored = replace(config, has_mtp=_has_mtp(architecture, config, tensors))
    names = gguf_names(architecture, stored, tensors)
    halves = _halves(names, tensors)
    wanted = _wanted(stored, names, halves)
    scales = nvfp4.scales(wanted, tensors)
    _check_tensors(
        path, stored, wanted, {n: each for n, each in tensors.items() if n not in scales}
    )
    parts = (part for parts in weight_plan(stored).values() for part in parts)
    by_name = {
        part.name: _single(part, tensors[names[part.name]])
        for part in parts
        if part.name not in halves
    }
    factors = nvfp4.factors(path, scales, tensors)
    return GgufModel(architecture, config, container, by_name, halves, factors)


def _check_whole(path: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse one file of a split model, with the remedy."""
    index, count = metadata.get("split.no", 0), metadata.get("split.count", 1)
    if count in (0, 1):  # 0: the files were merged
        return
    if not (isinstance(count, int) and isinstance(index, int) and 0 <= index < count <= MAX_PARTS):
        raise Unreadable(f"it says split.no={index!r} and split.count={count!r}; get it again")
    named = PART.fullmatch(path.name)
    model = named["model"] if named else path.stem
    names = [f"{model}-{part:05}-of-{count:05}{SUFFIX}" for part in range(1, count + 1)]
    part = f"part {index + 1} of {count} of a model"
    if path.name != names[index]:
        raise Unreadable(f"split.no and split.count say {part}; name it {names[index]}")
    missing = [name for name in names if not path.with_name(name).is_file()]
    lacking = f"it needs {shown(missing)} beside it: get what is missing, then " if missing else ""
    raise Unreadable(
        f"it is {part}; {lacking}merge all parts by `llama-gguf-split --merge {names[0]} "
        f"{model}{SUFFIX}` and give that file"
    )


def _config(
    path: Path, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, FileTensor]
) -> ModelConfig:
    num_layers = 1 + max(map(layer_of, tensors), default=-1)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    try:
        factors = {
            name: _rope_factors(path, tensors[name]) for name in ROPE_TENSORS & tensors.keys()
        }
        raw = raw_config(architecture, metadata, shapes, factors)
        raw["eos_token_id"] = gguf_tokenizer.eos_token_ids(metadata)
    except (OSError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise StartupError(
            [f"{path} has metadata of the wrong type ({error}); get the file again."]
        ) from None
    if not raw["num_hidden_layers"] <= num_layers <= metadata[f"{architecture}.block_count"]:
        raise StartupError(
            f"{path}: {architecture}.block_count={metadata[f'{architecture}.block_count']!r}, "
            f"but its tensors make {num_layers} layers; get the file again."
        )
    try:
        config = read_config(raw)
    except StartupError as error:
        faults = [fault.replace("config.json", path.name) for fault in error.faults]
        raise StartupError(faults) from None
    kinds = {name: tensors[name].kind.name for name in EMBEDDINGS if name in tensors}
    bits = {
        EMBEDDINGS[name]: BLOCK_BITS[kind] for name, kind in kinds.items() if kind in BLOCK_BITS
    }
    return replace(config, embedding_bits=bits)


def _rope_factors(path: Path, tensor: FileTensor) -> NDArray[np.float64]:
    if (count := prod(tensor.shape)) > MOST["head_dim"]:
        raise ValueError(f"{tensor.name} has {count} factors, of {MOST['head_dim']} at most")
    return tensor.read(path).astype(np.float64)


def _has_mtp(architecture: str, config: ModelConfig, tensors: Mapping[str, FileTensor]) -> bool:
    """Returns whether the file has the whole layer that guesses further tokens."""
    if f"blk.{config.num_layers}.nextn.eh_proj.weight" not in tensors or not mtp_plan(config):
        return False
    names = gguf_names(architecture, replace(config, has_mtp=True), tensors)
    halves = _halves(names, tensors)
    wanted = [part.name for parts in mtp_plan(config).values() for part in parts]
    return all(name in halves or names[name] in tensors for name in wanted)


def _halves(names: Mapping[str, str], tensors: Mapping[str, FileTensor]) -> dict[str, Halves]:
    """Returns the parameters that the file stores as two tensors, by our name."""
    pairs = {name: halves_of(stored) for name, stored in names.items() if stored not in tensors}
    return {
        name: Halves(*(tensors[half] for half in halves))
        for name, halves in pairs.items()
        if halves and tensors.keys() >= {*halves}
    }


def _wanted(
    config: ModelConfig, names: Mapping[str, str], halves: Mapping[str, Halves]
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all tensors that the decoder needs, by the file's names."""
    wanted: dict[str, tuple[int, ...]] = {}
    for part in (part for parts in weight_plan(config).values() for part in parts):
        if part.name in halves:
            rank, unturned = part.shape[-1], config.head_dim - config.rotary_dim
            keys, values = halves[part.name]
            wanted[keys.name] = (config.num_heads, rank, unturned)
            wanted[values.name] = (config.num_heads, config.value_dim, rank)
        else:
            name, (rows, *columns) = names[part.name], part.shape
            place, times = in_stack(part.name), 2 if FUSED in name else 1
            stacked = () if place is None else (place.number + 1, times * rows, *columns)
            wanted[name] = stacked or part.shape  # the last one of a stack counts
    return wanted


def _check_tensors(
    path: Path,
    config: ModelConfig,
    wanted: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, FileTensor],
) -> None:
    """Check that the file has every wanted tensor in its shape, and no others: an unused tensor
    means that we do not understand the model. Layers after the last one guess further tokens: see
    `_has_mtp`. Layers that use another layer's keys and values need no projections."""
    missing = [name for name in wanted if name not in tensors]

    def fits(name: str, shape: tuple[int, ...]) -> bool:
        stored_shape = squeezed(tensors[name].shape)
        is_by_group = GROUPED_NORM in name and prod(stored_shape) == prod(shape)
        return is_by_group or stored_shape == squeezed(shape)

    misshapen = [
        f"{name} is {list(tensors[name].shape)} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in tensors and not fits(name, shape)
    ]
    further = {name for name in tensors if layer_of(name) >= config.num_layers}
    unused = {
        f"blk.{layer}.attn_{kind}.weight"
        for layer, shape in enumerate(config.layer_shapes)
        if shape.kv_source is not None
        for kind in ("k", "v", "k_norm")
    }
    unknown = sorted(tensors.keys() - wanted.keys() - ROPE_TENSORS - further - unused)
    strange = f"{path} has tensors that its architecture should not have: {shown(unknown)}; choose"
    faults = {
        f"{path} lacks the tensors {shown(missing)}; get the file again.": missing,
        f"{path} has tensors that do not fit: {shown(misshapen)}; get it again.": misshapen,
        f"{strange} the model's safetensors or another model.": unknown,
    }
    if any(faults.values()):
        raise StartupError([fault for fault, names in faults.items() if names])


def layer_of(name: str) -> int:
    """Returns the layer of a tensor; -1 if it belongs to none."""
    match = LAYER.match(name)
    return int(match[1]) if match else -1


def _single(part: SourceTensor, tensor: FileTensor) -> FileTensor:
    """Returns a single tensor, or one expert's part of a stack, in our shape: see `squeezed`."""
    single, place = tensor._replace(shape=part.shape), in_stack(part.name)
    index = 0 if place is None else place.number
    if FUSED in tensor.name:  # an expert's gates come first
        index = 2 * index + (".up_proj." in part.name)
    return single._replace(begin=tensor.begin + index * single.num_bytes)


def _stored(halves: Halves) -> StoredTensor:
    num_heads, value_dim, rank = halves.values.shape
    unturned = halves.keys.shape[-1]
    kind = halves.values.kind.name
    dtype = kind if kind in FLOATS else kind + IN_HALVES  # groups differ from the joined one's
    return StoredTensor((num_heads * (unturned + value_dim), rank), dtype)
