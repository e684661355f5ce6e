"""Reads a GGUF file: configuration, tokenizer metadata, and the places of its tensors.

The `gguf` package reads the container through a memory map, and its results are checked. A file
that is damaged, or has a tensor with no known use, is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, ReaderField, ReaderTensor

from inference_api.errors import StartupError, shown
from inference_api.loading.config import ModelConfig
from inference_api.loading.families.layer_plan import LAYER_INPUTS, SourceTensor
from inference_api.loading.families.read import read_config
from inference_api.loading.gguf import BLOCK_BITS, SUFFIX
from inference_api.loading.gguf import factors as nvfp4
from inference_api.loading.gguf import tokenizer as gguf_tokenizer
from inference_api.loading.gguf.config import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, raw_config
from inference_api.loading.gguf.names import (
    FUSED,
    KNOWN_ARCHITECTURES,
    gguf_names,
    halves_of,
    rows_of_fused,
    squeezed,
)
from inference_api.loading.gguf.panels import STORED
from inference_api.loading.layout import EMBEDDING, StoredTensor, Tensors, mtp_plan, weight_plan
from inference_api.loading.numbers import FLOATS
from inference_api.loading.stacks import in_stack

MAX_VALUES = 4_000_000  # in all lists of metadata; vocabularies and merges have about 100,000
MAX_TEXT_BYTES = 64 * 1024**2  # size of one text of metadata
MAX_ENTRIES = 100_000  # entries of metadata; also the limit of tensors
ROPE_TENSORS = {ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS}
EMBEDDINGS = {"token_embd.weight": EMBEDDING, "per_layer_token_embd.weight": LAYER_INPUTS}
LAYER = re.compile(r"blk\.(\d{1,9})\.")
GROUPED_NORM = ".ssm_norm."  # Mamba-2's has a row for each group
PART = re.compile(r"(?P<model>.+)-\d{5}-of-\d{5}\.gguf")
MAX_PARTS = 65_535  # files of a split model; the count has 16 bits

# Types that the package converts to floats.
TYPES = {*STORED, *(GGMLQuantizationType[name] for name in (*FLOATS, "TQ1_0", "TQ2_0"))}


class Halves(NamedTuple):
    """The two tensors with which newer files project DeepSeek's latents to keys and values."""

    keys: ReaderTensor  # [heads, rank, unturned dimensions of a key]
    values: ReaderTensor  # [heads, value_dim, rank]


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The contents of a file. `tensors` are views of it, keyed by the names of `weight_plan`; keys
    of `factors` are names in the file."""

    architecture: str
    config: ModelConfig
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ReaderTensor]
    halves: Mapping[str, Halves]
    factors: nvfp4.Factors

    @property
    def stored(self) -> Tensors:
        whole = {
            name: StoredTensor(_shape(tensor), tensor.tensor_type.name)
            for name, tensor in self.tensors.items()
        }
        return whole | {name: _stored(halves) for name, halves in self.halves.items()}


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
        reader = _Reader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        _check_whole(path, metadata)
        _check_extent(reader, size)
    except _Unreadable as error:
        raise StartupError([f"{path}: {error}."]) from None
    except Exception as error:  # damaged bytes make numpy, struct or codecs raise anything
        raise StartupError(
            [f"{path} is damaged or incomplete ({type(error).__name__}: {error}); get it again."]
        ) from None
    tensors = {tensor.name: tensor for tensor in reader.tensors}
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
    whole = {
        part.name: _single(part, tensors[names[part.name]])
        for part in parts
        if part.name not in halves
    }
    factors = nvfp4.factors(path, scales, tensors)
    return GgufModel(architecture, config, metadata, whole, halves, factors)


class _Unreadable(Exception):
    """A fault of a file, in our own words."""


class _Reader(GGUFReader):
    """The package's reader with bounds on the sizes that a file claims."""

    _num_values = 0  # elements of all lists read so far

    def _get_str(self, offset: int) -> Any:
        num_bytes = int(self._get(offset, np.uint64)[0])
        if num_bytes > MAX_TEXT_BYTES:
            raise ValueError(f"a text of {num_bytes} bytes")
        return super()._get_str(offset)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            if self._get(orig_offs, np.uint32)[0] == GGUFValueType.ARRAY:
                raise ValueError("a list of lists")
            length = int(self._get(orig_offs + 4, np.uint64)[0])
            self._num_values += length
            if self._num_values > MAX_VALUES:
                raise ValueError(f"a list of {length} values")
        return super()._get_field_parts(orig_offs, raw_type)

    def _build_fields(self, offs: int, count: int) -> int:
        if count > MAX_ENTRIES:
            raise ValueError(f"{count} entries of metadata")
        return super()._build_fields(offs, count)

    def _build_tensor_info(self, offs: int, count: int) -> tuple[int, list[ReaderField]]:
        if count > MAX_ENTRIES:
            raise ValueError(f"{count} tensors")
        return super()._build_tensor_info(offs, count)

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        for field in fields:
            number = int(field.parts[4][0])
            if number not in TYPES:
                known = {int(kind): kind.name for kind in GGMLQuantizationType}
                names = ", ".join(kind.name for kind in sorted(TYPES))
                raise _Unreadable(
                    f"tensor {field.name} has quantisation type {known.get(number, number)}, which "
                    f"is none of {names}; choose a file of one of these types"
                )
        super()._build_tensors(start_offs, fields)


def _check_extent(reader: GGUFReader, size: int) -> None:
    """Check that tensors follow each other to the file's end, without gaps or overlaps."""
    expected = reader.data_offset
    end = expected
    for tensor in reader.tensors:
        if tensor.data_offset != expected:
            raise _Unreadable(
                f"tensor {tensor.name} begins at byte {tensor.data_offset} instead of {expected}; "
                "the file is damaged, get it again"
            )
        end = expected + tensor.n_bytes
        expected = -(-end // int(reader.alignment)) * int(reader.alignment)
    if not end <= size <= expected:
        raise _Unreadable(
            f"it has {size} bytes, its tensors end at {end}; the file is damaged, get it again"
        )


def _check_whole(path: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse one file of a split model, with the remedy."""
    index, count = metadata.get("split.no", 0), metadata.get("split.count", 1)
    if count in (0, 1):  # 0: the files were merged
        return
    if not (isinstance(count, int) and isinstance(index, int) and 0 <= index < count <= MAX_PARTS):
        raise _Unreadable(f"it says split.no={index!r} and split.count={count!r}; get it again")
    named = PART.fullmatch(path.name)
    model = named["model"] if named else path.stem
    names = [f"{model}-{part:05}-of-{count:05}{SUFFIX}" for part in range(1, count + 1)]
    part = f"part {index + 1} of {count} of a model"
    if path.name != names[index]:
        raise _Unreadable(f"split.no and split.count say {part}; name it {names[index]}")
    missing = [name for name in names if not path.with_name(name).is_file()]
    lacking = f"it needs {shown(missing)} beside it: get what is missing, then " if missing else ""
    raise _Unreadable(
        f"it is {part}; {lacking}merge all parts by `llama-gguf-split --merge {names[0]} "
        f"{model}{SUFFIX}` and give that file"
    )


def _config(
    path: Path, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, ReaderTensor]
) -> ModelConfig:
    num_layers = 1 + max(map(layer_of, tensors), default=-1)
    factors = {
        name: np.asarray(tensors[name].data, np.float64) for name in ROPE_TENSORS if name in tensors
    }
    shapes = {name: _shape(tensor) for name, tensor in tensors.items()}
    try:
        raw = raw_config(architecture, metadata, shapes, factors)
        raw["eos_token_id"] = gguf_tokenizer.eos_token_ids(metadata)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
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
    kinds = {name: tensors[name].tensor_type.name for name in EMBEDDINGS if name in tensors}
    bits = {
        EMBEDDINGS[name]: BLOCK_BITS[kind] for name, kind in kinds.items() if kind in BLOCK_BITS
    }
    return replace(config, embedding_bits=bits)


def _has_mtp(architecture: str, config: ModelConfig, tensors: Mapping[str, ReaderTensor]) -> bool:
    """Returns whether the file has the whole layer that guesses further tokens."""
    if f"blk.{config.num_layers}.nextn.eh_proj.weight" not in tensors or not mtp_plan(config):
        return False
    names = gguf_names(architecture, replace(config, has_mtp=True), tensors)
    halves = _halves(names, tensors)
    own = [part.name for parts in mtp_plan(config).values() for part in parts]
    return all(name in halves or names[name] in tensors for name in own)


def _halves(names: Mapping[str, str], tensors: Mapping[str, ReaderTensor]) -> dict[str, Halves]:
    """Returns the parameters that the file stores as two tensors, by our name."""
    split = {ours: halves_of(theirs) for ours, theirs in names.items() if theirs not in tensors}
    return {
        ours: Halves(*(tensors[name] for name in theirs))
        for ours, theirs in split.items()
        if theirs and tensors.keys() >= {*theirs}
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
            found, times = in_stack(part.name), 2 if FUSED in name else 1
            stacked = () if found is None else (found.number + 1, times * rows, *columns)
            wanted[name] = stacked or part.shape  # the last one of a stack counts
    return wanted


def _check_tensors(
    path: Path,
    config: ModelConfig,
    wanted: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, ReaderTensor],
) -> None:
    """Check that the file has every wanted tensor in its shape, and no others: an unused tensor
    means that we do not understand the model. Layers after the last one guess further tokens: see
    `_has_mtp`. Layers that use another layer's keys and values need no projections."""
    missing = [name for name in wanted if name not in tensors]

    def fits(name: str, shape: tuple[int, ...]) -> bool:
        theirs = squeezed(_shape(tensors[name]))
        is_by_group = GROUPED_NORM in name and prod(theirs) == prod(shape)
        return is_by_group or theirs == squeezed(shape)

    misshapen = [
        f"{name} is {list(_shape(tensors[name]))} instead of {list(shape)}"
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
    found = LAYER.match(name)
    return int(found[1]) if found else -1


def _single(part: SourceTensor, tensor: ReaderTensor) -> ReaderTensor:
    """Returns a single tensor, or one expert's part of a stack, in our shape: see `squeezed`."""
    found = in_stack(part.name)
    if found is None:
        data = tensor.data
        data = data.reshape(-1) if len(part.shape) == 1 else data.reshape(part.shape[0], -1)
        return tensor._replace(shape=np.array(part.shape[::-1]), data=data)
    own = tensor.data[found.number]
    begin, end = rows_of_fused(part.name, len(own)) if FUSED in tensor.name else (0, len(own))
    data = own[begin:end]
    return tensor._replace(
        shape=np.array(part.shape[::-1]),
        n_elements=prod(part.shape),
        n_bytes=data.nbytes,
        data_offset=tensor.data_offset + found.number * own.nbytes + own[:begin].nbytes,
        data=data,
    )


def _stored(halves: Halves) -> StoredTensor:
    num_heads, value_dim, rank = _shape(halves.values)
    unturned = int(halves.keys.shape[0])
    kind = halves.values.tensor_type.name
    dtype = kind if kind in FLOATS else f"{kind} in halves"  # groups differ from the joined one's
    return StoredTensor((num_heads * (unturned + value_dim), rank), dtype)


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))
