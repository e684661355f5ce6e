"""Finds a model, and every reason why it cannot be served here.

Runs before a worker starts, and reads headers, not weights. The loader uses the same functions, so
a model that passes `check_all` also loads.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from inference_api.errors import StartupError, shown
from inference_api.kernels.build import multiplies_tiles
from inference_api.kernels.packing import BITS, FLOAT_BITS, GROUP, MAX_HEAD_DIM, Bits
from inference_api.loading import drafting, hardware, hub
from inference_api.loading.config import ModelConfig, TensorNames
from inference_api.loading.families.read import read_config
from inference_api.loading.files import (
    has_mtp,
    read_headers,
    shape_faults,
    unstacked,
    weight_files,
)
from inference_api.loading.gguf import SUFFIX, is_gguf, read_gguf
from inference_api.loading.json_files import MAX_JSON_BYTES, read_json
from inference_api.loading.layout import Tensors, held_bits, linear_weights, matrices, spared
from inference_api.loading.memory import DRAFT, Footprint, all_within, memory_faults, weights_size
from inference_api.loading.options import EngineOptions
from inference_api.loading.quantised.formats import FLOATS, with_quantisation
from inference_api.loading.tokenizer_files import eos_token_ids, tokenizer_faults

CONFIG = "config.json"
DRAFT_MODEL = "DRAFT_MODEL"
MAX_TEMPLATE_BYTES = 1_000_000  # size of a chat template; the longest have some 20,000
# Further files that the tokenizer's library may read, and the most bytes of each.
DESCRIPTIONS = {
    "*.json": MAX_JSON_BYTES,
    "*.jinja": MAX_TEMPLATE_BYTES,
    "*/*.jinja": MAX_TEMPLATE_BYTES,
}


class Asked(NamedTuple):
    """A model to serve: the name it gets, where it is, how to serve it, and what drafts for it."""

    name: str
    model: str
    options: EngineOptions
    draft_model: str | None = None


def check_all(models: Sequence[Asked]) -> list[str]:
    """Returns every reason why these models cannot be served together; none if they can.

    A model is a folder, a GGUF file or a hub id; of a hub model only configuration, tokenizer and
    the headers of its weights are fetched. Checks the CPU's memory; the loader checks a CUDA
    device's, which only torch can do.
    """
    faults: list[str] = []
    footprints: dict[str, Footprint] = {}
    for asked in models:
        found, of_asked = _examined(asked)
        faults += found if len(models) == 1 else [f"{asked.name}: {fault}" for fault in found]
        footprints |= of_asked
    return faults + memory_faults(footprints, hardware.available_memory_bytes())


Examined = tuple[list[str], Footprint | None]  # faults, and memory of all rows on the CPU


class Described(NamedTuple):
    """A model as its files describe it. If `config` is None, `faults` says why."""

    folder: Path
    config: ModelConfig | None
    tensors: Tensors
    faults: list[str]


def describe(model: str, setting: str = "MODEL") -> Described:
    """Read configuration, tokenizer and the headers of the weights. Raises StartupError, naming the
    setting, if there is no such model."""
    try:
        folder = _folder_of(model, with_weights=False, setting=setting)
        return _described(folder, model)
    except (OSError, ValueError) as error:  # a name that is too long, a folder without permission
        raise StartupError(
            [f"{setting}={reprlib.repr(model)} cannot be read ({error}); correct it."]
        ) from None


def _described(folder: Path, model: str) -> Described:
    faults = _size_faults(folder)
    if faults:
        return Described(folder, None, {}, faults)
    try:
        config = load_config(folder)
    except StartupError as error:
        faults = [*error.faults, *tokenizer_faults(folder, None)]
        return Described(folder, None, {}, list(dict.fromkeys(faults)))
    tensors: Tensors = {}
    try:
        tensors = _stored_tensors(folder, model, config.tensor_names)
        faults += shape_faults(tensors, config)
    except StartupError as error:
        faults += error.faults
    faults += tokenizer_faults(folder, config)
    return Described(folder, config, tensors, faults)


def _examined(asked: Asked) -> tuple[list[str], Mapping[str, Footprint]]:
    """Returns the faults of a model and of what drafts for it, and their memory on the CPU."""
    name, model, options, draft_model = asked
    try:
        described = describe(model)
        faults, footprint = _fitted(described, options)
    except StartupError as error:
        return list(error.faults), {}
    footprints = {name: footprint}
    if draft_model is not None and described.config is not None:
        try:
            found, footprints[name + DRAFT] = _examined_draft(described, options, draft_model)
        except StartupError as error:
            found = [*error.faults]
        faults += [each if DRAFT_MODEL in each else f"{DRAFT_MODEL}: {each}" for each in found]
    there = {each: needed for each, needed in footprints.items() if needed is not None}
    is_split = options.layers is not None  # then a rank's layers and the draft model share nothing
    together = [[each] for each in there.values()] if is_split else [[*there.values()]]
    within = [one for each in together for one in all_within(each, options.kv_cache_bytes)]
    return faults, dict(zip(there, within, strict=True))


def _examined_draft(model: Described, options: EngineOptions, source: str) -> Examined:
    """Raises StartupError."""
    assert model.config is not None
    if (assistant := examined_assistant(model, options, source, DRAFT_MODEL)) is not None:
        return assistant
    draft = describe(source, DRAFT_MODEL)
    if draft.config is not None:
        options = options.of_draft(model.config.context(options.max_seq_len), draft.config)
        if not draft.faults and not model.faults:
            draft.faults.extend(drafting.draft_faults(model.folder, draft.folder, draft.config))
    return _fitted(draft, options)


def examined_assistant(
    model: Described,
    options: EngineOptions,
    source: str,
    setting: str,
    is_packed_file: bool = False,
) -> Examined | None:
    """Returns None if `source`, which a setting names, has no assistant. Raises StartupError."""
    assert model.config is not None
    folder = _folder_of(source, with_weights=False, setting=setting)
    if not drafting.is_assistant(folder):
        return None
    config = drafting.assistant_config(folder, model.config, setting)
    faults = shape_faults(_stored_tensors(folder, source, config.tensor_names), config)
    if hardware.may_be_on_cuda(options.device):
        return faults, None
    own = settled(model.config, options, model.tensors)
    own = own.on("cpu", keeps_bfloat16(model.config, model.tensors))
    weights_bytes = weights_size(config, own.dtype, weight_bits(own), is_packed_file)
    return faults, Footprint(weights_bytes, 1, num_pages=0, rows=1, context_tokens=0)


def _fitted(described: Described, options: EngineOptions) -> Examined:
    config, faults = described.config, described.faults
    if config is None:
        return faults, None
    faults += context_faults(config, options.max_seq_len)
    faults += quantization_faults(config, settled(config, options, described.tensors))
    faults += device_faults(config, options)
    if hardware.may_be_on_cuda(options.device):
        return faults, None
    faults += cpu_faults(config)
    footprint = footprint_of(config, options, described.tensors)
    if options.has_medusa and (
        heads := drafting.known_heads(described.folder, options.medusa_heads)
    ):
        weights_bytes = footprint.weights_bytes + drafting.heads_bytes(heads)
        footprint = replace(footprint, weights_bytes=weights_bytes)
    return faults, footprint


def footprint_of(
    config: ModelConfig, options: EngineOptions, tensors: Tensors, is_packed_file: bool = False
) -> Footprint:
    """Returns the memory that the model takes. `is_packed_file`: see `Footprint.of`."""
    device = "cuda" if options.device == "cuda" else "cpu"
    options = settled(config, options, tensors).on(device, keeps_bfloat16(config, tensors))
    config = options.part_of(kept(with_mtp(config, options, tensors), options, tensors))
    by_torch = device == "cuda"
    bits = None if by_torch and options.quantization == "none" else weight_bits(options)
    return Footprint.of(config, options, bits, is_packed_file, by_torch=by_torch)


def locate(model: str, setting: str = "MODEL") -> Path:
    """Returns the folder of a model, or its GGUF file. Downloads a hub model, unless it is cached.

    Raises StartupError, naming the setting, if there is no such model.
    """
    return _folder_of(model, with_weights=True, setting=setting)


def load_config(folder: Path) -> ModelConfig:
    """Read config.json with the EOS ids of all the folder's files, or the metadata of a GGUF file.
    Raises StartupError."""
    if is_gguf(folder):
        return read_gguf(folder).config
    raw = with_quantisation(folder, read_json(folder / CONFIG))
    return read_config({**raw, "eos_token_id": sorted(eos_token_ids(folder, raw))})


def context_faults(config: ModelConfig, max_seq_len: int | None) -> list[str]:
    """Returns a fault if the model's context is shorter than MAX_SEQ_LEN."""
    if max_seq_len is None or max_seq_len <= config.max_positions:
        return []
    return [
        f"MAX_SEQ_LEN={max_seq_len} exceeds the model's {config.max_positions} positions; "
        "lower it or unset it."
    ]


def settled(config: ModelConfig, options: EngineOptions, tensors: Tensors) -> EngineOptions:
    """Returns the options with QUANTIZATION=auto and file resolved for a checkpoint.

    None if no matrix is quantised, or on CUDA if some cannot be packed; file if some are used as
    they are in the file (see `kept`); else int8.
    """
    if options.quantization not in ("auto", "file"):
        return options
    is_uneven = options.device == "cuda" and bool(uneven(config))
    if is_uneven or not is_quantised(config, tensors):
        return replace(options, quantization="none")
    is_kept = kept(config, options, tensors).kept_bits
    return replace(options, quantization="file" if is_kept else "int8")


def with_mtp(config: ModelConfig, options: EngineOptions, tensors: Tensors) -> ModelConfig:
    """Returns the config with the layer that guesses further tokens, if it is wanted, in the
    checkpoint, and not on CUDA."""
    is_wanted = options.has_mtp and options.device != "cuda"
    return replace(config, has_mtp=is_wanted and has_mtp(tensors, config))


def kept(config: ModelConfig, options: EngineOptions, tensors: Tensors) -> ModelConfig:
    """Returns the config with the forms of matrices that are not packed like the others.

    Under QUANTIZATION=file, matrices of fewer than 8 bits stay as they are in the file, if the
    kernels support their form. The same holds under auto, unless the processor multiplies whole
    tiles, which support only int8 and int4 and are faster with many rows. On CUDA both keep what
    int4 holds unchanged. Under int4, the output head and the value projections become int8, unless
    the file has them in groups of 4 bits: small, they would lose the most quality by rounding.
    """
    on_cuda = options.device == "cuda"
    if on_cuda and uneven(config):  # see `settled`
        return config
    if options.quantization == "int4":
        return replace(config, kept_bits=dict.fromkeys(spared(config, tensors), BITS["int8"]))
    is_wanted = options.quantization == "file" or (
        options.quantization == "auto" and (on_cuda or not multiplies_tiles())
    )
    if not is_wanted:
        return config
    return replace(config, kept_bits=held_bits(config, tensors, on_cuda))


def is_quantised(config: ModelConfig, tensors: Tensors) -> bool:
    """Returns whether any matrix of the checkpoint is quantised."""
    return config.quantisation is not None or any(
        tensors[part.name].dtype not in FLOATS for part in matrices(config) if part.name in tensors
    )


def quantization_faults(config: ModelConfig, options: EngineOptions) -> list[str]:
    """Returns a fault if weights cannot be quantised on CUDA. `options` are settled."""
    found = uneven(config)
    if options.device != "cuda" or options.quantization == "none" or not found:
        return []
    return [
        f"QUANTIZATION={options.quantization} needs weights with a multiple of {GROUP} columns; "
        f"these differ: {shown(found)}; set QUANTIZATION=none."
    ]


def uneven(config: ModelConfig) -> list[str]:
    """Returns the weights that cannot be packed."""
    parts = [part for parts in linear_weights(config).values() for part in parts]
    return [f"{part.name} {part.shape}" for part in parts if part.shape[1] % GROUP]


def device_faults(config: ModelConfig, options: EngineOptions) -> list[str]:
    """Returns faults if the device, or a split model, does not support the layers or the cache."""
    kinds = {"recurrent layers": config.recurrent, "layers of different shapes": config.shapes}
    faults = []
    for kind in [name for name, is_there in kinds.items() if is_there]:
        if options.device == "cuda":
            faults.append(f"{config.family} has {kind}, not there yet on CUDA; set DEVICE=cpu.")
        if options.layers is not None:
            faults.append(f"{config.family} has {kind}, which cannot be split; unset SPLIT.")
    if options.device == "cuda" and options.kv_cache_dtype == "int4":
        faults.append("KV_CACHE_DTYPE=int4 is for the CPU; unset it or set DEVICE=cpu.")
    return faults


def cpu_faults(config: ModelConfig) -> list[str]:
    """Returns a fault, with a remedy, if the model cannot be decoded on the CPU."""
    return [f"{fault}; set DEVICE=cuda or choose another model." for fault in kernel_faults(config)]


def kernel_faults(config: ModelConfig) -> list[str]:
    """Returns why the kernels cannot decode this model, without a remedy."""
    faults = []
    widest = max(shape.head_dim for shape in config.layer_shapes)
    if widest > MAX_HEAD_DIM:
        faults.append(f"head_dim={widest} exceeds {MAX_HEAD_DIM}, the kernels' limit")
    latent = config.latent
    if latent is not None and latent.kv_rank + config.rotary_dim > MAX_HEAD_DIM:
        faults.append(
            f"kv_lora_rank={latent.kv_rank} and qk_rope_head_dim={config.rotary_dim} exceed "
            f"{MAX_HEAD_DIM} together, the kernels' limit"
        )
    if found := uneven(config):
        faults.append(
            f"the kernels need weights with a multiple of {GROUP} columns; these differ: "
            f"{shown(found)}"
        )
    return faults


def weight_bits(options: EngineOptions) -> Bits:
    """Returns the form in which the kernels hold weights that do not stay as in the file. `options`
    are settled, and their dtype is not auto."""
    if options.quantization == "none":
        return FLOAT_BITS[options.dtype]
    return BITS["int8" if options.quantization == "file" else options.quantization]


def keeps_bfloat16(config: ModelConfig, tensors: Tensors) -> bool:
    """Returns whether the checkpoint's matrices are bfloat16, which the kernels use unchanged.
    Vectors are float32 in any case."""
    return all(
        part.name in tensors and tensors[part.name].dtype == "BF16" for part in matrices(config)
    )


def _folder_of(model: str, *, with_weights: bool, setting: str = "MODEL") -> Path:
    try:
        folder = Path(model).expanduser()
    except RuntimeError:  # `~user` without such a user
        folder = Path(model)
    if folder.is_dir():
        return _gguf_file_in(folder) or folder
    if is_gguf(folder) and folder.is_file():
        return folder
    if hub.is_hub_id(model):
        patterns = hub.DESCRIPTION_FILES + (hub.WEIGHT_FILES if with_weights else [])
        return hub.fetch(model, patterns, setting=setting)
    raise StartupError(
        [
            f"{setting}={model} is no folder; give the folder of a model, a GGUF file or a hub id, "
            "owner/name."
        ]
    )


def _gguf_file_in(folder: Path) -> Path | None:
    """Returns the GGUF file of a folder that has nothing else to load, or None. Raises
    StartupError."""
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files or (folder / CONFIG).exists():
        return None
    if len(files) > 1:
        names = shown([file.name for file in files])
        raise StartupError([f"{folder} has several GGUF files ({names}); name one in MODEL."])
    return files[0]


def _stored_tensors(folder: Path, model: str, names: TensorNames) -> Tensors:
    try:
        return read_headers(weight_files(folder), names)
    except StartupError:
        if Path(model).expanduser().exists():
            raise
        return unstacked(hub.stored_tensors(model), names)  # described, but not downloaded yet


def _size_faults(folder: Path) -> list[str]:
    if is_gguf(folder):
        return []
    return [
        f"{file} has {file.stat().st_size} bytes, more than {most}; get the file again."
        for pattern, most in DESCRIPTIONS.items()
        for file in sorted(folder.glob(pattern))
        if file.is_file() and file.stat().st_size > most
    ]
