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
from inference_api.loading import drafting, hardware, hub, memory
from inference_api.loading.config import ModelConfig, TensorNames
from inference_api.loading.families.read import read_config
from inference_api.loading.files import read_headers, shape_faults, unstacked, weight_files
from inference_api.loading.gguf import SUFFIX, is_gguf, read_gguf
from inference_api.loading.json_files import MAX_JSON_BYTES, read_json
from inference_api.loading.layout import Tensors
from inference_api.loading.options import EngineOptions
from inference_api.loading.quantised.formats import with_quantisation
from inference_api.loading.settling import context_faults, cpu_faults, settle, weight_bits
from inference_api.loading.tokenizer_files import (
    MAX_TEMPLATE_BYTES,
    eos_token_ids,
    tokenizer_faults,
)

CONFIG = "config.json"
DRAFT_MODEL = "DRAFT_MODEL"
# Further files that the tokenizer's library may read, and the most bytes of each.
DESCRIPTIONS = {
    "*.json": MAX_JSON_BYTES,
    "*.jinja": MAX_TEMPLATE_BYTES,
    "*/*.jinja": MAX_TEMPLATE_BYTES,
}


class RequestedModel(NamedTuple):
    """A model to serve: the name it gets, where it is, how to serve it, and what drafts for it."""

    name: str
    model: str
    options: EngineOptions
    draft_model: str | None = None


def check_all(models: Sequence[RequestedModel]) -> list[str]:
    """Returns every reason why these models cannot be served together; none if they can.

    A model is a folder, a GGUF file or a hub id; of a hub model only configuration, tokenizer and
    the headers of its weights are fetched. Checks the CPU's memory; the loader checks a CUDA
    device's, which only torch can do.
    """
    faults: list[str] = []
    footprints: dict[str, memory.Footprint] = {}
    for requested in models:
        model_faults, model_footprints = _examined(requested)
        prefix = "" if len(models) == 1 else f"{requested.name}: "
        faults += [prefix + fault for fault in model_faults]
        footprints |= model_footprints
    return faults + memory.memory_faults(footprints, hardware.available_memory_bytes())


Examined = tuple[list[str], memory.Footprint | None]  # faults, and memory of all rows on the CPU


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
        folder = locate(model, setting, with_weights=False)
        return _described(folder, model)
    except (OSError, ValueError) as error:  # a name that is too long, a folder without permission
        raise StartupError(
            f"{setting}={reprlib.repr(model)} cannot be read ({error}); correct it."
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


def _examined(requested: RequestedModel) -> tuple[list[str], Mapping[str, memory.Footprint]]:
    """Returns the faults of a model and of its drafter, and their memory on the CPU."""
    name, model, options, draft_model = requested
    try:
        described = describe(model)
        if described.config is not None:
            context = options.max_seq_len or described.config.own_context  # like the loader
            options = replace(options, max_seq_len=context)
        faults, footprint = _fitted(described, options)
    except StartupError as error:
        return list(error.faults), {}
    footprints = {name: footprint}
    if draft_model is not None and described.config is not None:
        try:
            found, footprints[name + memory.DRAFT] = _examined_draft(
                described, options, draft_model
            )
        except StartupError as error:
            found = [*error.faults]
        faults += [each if DRAFT_MODEL in each else f"{DRAFT_MODEL}: {each}" for each in found]
    on_cpu = {each: needed for each, needed in footprints.items() if needed is not None}
    is_split = options.layers is not None  # then a rank's layers and the draft model share nothing
    groups = [[each] for each in on_cpu.values()] if is_split else [[*on_cpu.values()]]
    fitted: list[memory.Footprint] = []
    for group in groups:
        fitted += memory.all_within(group, options.kv_cache_bytes)
        faults += memory.cache_faults(group, options.kv_cache_bytes, memory.cache_shares(group))
    return faults, dict(zip(on_cpu, fitted, strict=True))


def _examined_draft(model: Described, options: EngineOptions, source: str) -> Examined:
    """Returns the faults and memory of a draft model, or of an assistant. Raises StartupError."""
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
    """Returns the faults and memory of the assistant in `source`, which a setting names; None if
    there is none. Raises StartupError."""
    assert model.config is not None
    folder = locate(source, setting, with_weights=False)
    if not drafting.is_assistant(folder):
        return None
    config = drafting.assistant_config(folder, model.config, setting)
    faults = shape_faults(_stored_tensors(folder, source, config.tensor_names), config)
    if hardware.may_be_on_cuda(options.device):
        return faults, None
    settled = settle(model.config, options, model.tensors).options
    weights_bytes = memory.weights_size(config, settled.dtype, weight_bits(settled), is_packed_file)
    return faults, memory.Footprint(weights_bytes, 1, num_pages=0, rows=1, context_tokens=0)


def _fitted(described: Described, options: EngineOptions) -> Examined:
    config, faults = described.config, described.faults
    if config is None:
        return faults, None
    faults += context_faults(config, options.max_seq_len)
    settled = settle(config, options, described.tensors)
    faults += settled.faults
    if hardware.may_be_on_cuda(options.device):
        return faults, None
    faults += cpu_faults(config, options)
    footprint = settled.footprint()
    if options.has_medusa and (
        heads := drafting.known_heads(described.folder, options.medusa_heads)
    ):
        footprint = footprint.beside(drafting.heads_bytes(heads))
    return faults, footprint


def load_config(folder: Path) -> ModelConfig:
    """Returns the config of a GGUF file, or of a folder: config.json with the EOS ids of all files.
    Raises StartupError."""
    if is_gguf(folder):
        return read_gguf(folder).config
    raw = with_quantisation(folder, read_json(folder / CONFIG))
    return read_config({**raw, "eos_token_id": sorted(eos_token_ids(folder, raw))})


def locate(model: str, setting: str = "MODEL", with_weights: bool = True) -> Path:
    """Returns the folder of a model, or its GGUF file. Downloads a hub model, unless it is cached.

    Raises StartupError, naming the setting, if there is no such model.
    """
    folder = hub.path_of(model, setting)
    if folder.is_dir():
        return _gguf_file_in(folder) or folder
    if is_gguf(folder) and folder.is_file():
        return folder
    if hub.is_hub_id(model):
        patterns = hub.DESCRIPTION_FILES + (hub.WEIGHT_FILES if with_weights else [])
        return hub.fetch(model, patterns, setting=setting)
    raise StartupError(
        f"{setting}={model} is no folder; give the folder of a model, a GGUF file or a hub id, "
        "owner/name."
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
        if not hub.is_hub_id(model) or Path(model).exists():
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
