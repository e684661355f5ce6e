"""Describes and loads the models of the settings. Imports the engine only when it is needed."""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from inference_api.core.decode_backend import DecodeBackend
from inference_api.core.loaded_model import LoadedModel, row_pages
from inference_api.core.plan import StepPlanner
from inference_api.core.rows import RowTable
from inference_api.core.served_model import ServedModel
from inference_api.core.state.page_folder import ON_CUDA, PageFolder
from inference_api.core.state.stored_pages import Disk
from inference_api.errors import StartupError
from inference_api.loading.generation_config import NO_DEFAULTS, read_defaults
from inference_api.loading.options import EngineOptions
from inference_api.runner import ModelRunner
from inference_api.settings import ModelSettings, Settings
from inference_api.speculation.draft_model import ModelDrafts
from inference_api.speculation.sources import draft_sources, drafting_of
from inference_api.text.prompt_encoder import ByteBudget
from inference_api.text.tokens import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from inference_api.engine.cuda.slots import Slots
    from inference_api.engine.local_runner import LocalRunner
    from inference_api.loading.memory import Footprint
    from inference_api.loading.packing.folder import PackedFolder

logger = logging.getLogger(__name__)

Make = Callable[[Path, EngineOptions], "LocalRunner"]  # see `make_runner`
Stamp = list[tuple[int, int, int] | None]  # each file's inode, size and time; None: unreadable


@dataclass(frozen=True, slots=True)
class LoadableModel:
    """A model that was described from its files, whose weights can be loaded and unloaded."""

    served: ServedModel
    settings: Settings
    runner: "LocalRunner"
    drafter: "LocalRunner | None"
    pages_folder: PageFolder | None = None

    def load(self) -> LoadedModel:
        """Load the weights. Returns the model with empty rows. Raises StartupError."""
        self.runner.load()
        if self.drafter is not None:
            self.drafter.load()
        model = loaded(self.served, self.runner, self.settings, self.drafter)
        if self.pages_folder is not None:
            from inference_api.engine.kernel_runner import KernelRunner

            if not isinstance(self.runner, KernelRunner):
                raise StartupError(ON_CUDA)
            disk = Disk(self.pages_folder, self.runner.fingerprint, self.runner.view_page)
            model.rows.pages.store(disk)
        return model

    def unload(self) -> None:
        """Free the memory of the weights. The model that `load` returned must not be used again."""
        for runner in self._runners:
            runner.unload()

    def is_packed(self) -> bool:
        """Returns whether `load` will find packed weights. Raises StartupError."""
        return all(runner.is_packed() for runner in self._runners)

    def stamp(self) -> Stamp:
        """Returns a value that changes when a weight file changes."""
        return [_stamp(file) for runner in self._runners for file in runner.all_files]

    @property
    def footprints(self) -> "Sequence[Footprint]":
        return [runner.footprint for runner in self._runners]

    @property
    def slot_bytes(self) -> int:
        """The bytes that the model takes in a slot, on CUDA."""
        from inference_api.loading.memory import slot_bytes

        return sum(slot_bytes(each.weights_bytes, each.cache_bytes) for each in self.footprints)

    @property
    def weights_bytes(self) -> int:
        """The bytes of all weights. A packed file that both runners map counts once."""
        shared = (sum(each.shared_weights.values()) for each in self._runners)
        own_bytes = sum(each.weights_bytes for each in self.footprints) - sum(shared)
        return own_bytes + sum(self.shared_weights.values())

    @property
    def shared_weights(self) -> Mapping[Hashable, int]:
        """The bytes of each packed file, keyed by the file."""
        files = [each.shared_weights for each in self._runners]
        return {key: num_bytes for each in files for key, num_bytes in each.items()}

    @property
    def _runners(self) -> "list[LocalRunner]":
        return [self.runner] if self.drafter is None else [self.runner, self.drafter]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def loaded(
    served: ServedModel, runner: ModelRunner, settings: Settings, drafter: ModelRunner | None = None
) -> LoadedModel:
    """Returns the model of a loaded runner and drafter, with empty rows."""
    own_settings, draft = settings.of_model(served.name), None
    if drafter is not None:
        pages = row_pages(drafter, settings)
        draft = ModelDrafts(drafter, pages, own_settings.speculation_tokens, runner.vocab_size)
    drafting = drafting_of(served, runner, own_settings, draft)
    rows = RowTable(runner.max_rows, row_pages(runner, settings))
    planner = StepPlanner(rows, runner, settings, drafting, served.costs)
    return LoadedModel(served, runner, rows, planner, draft, drafting)


def pages_folder(settings: Settings) -> PageFolder | None:
    """Returns the folder of PREFIX_CACHE_DIR; None if unset. Raises OSError if it is unusable."""
    if settings.prefix_cache_dir is None:
        return None
    path = settings.prefix_cache_dir
    folder = PageFolder(path, settings.prefix_cache_size)
    logger.info("%s has %d pages of prompts, %d bytes", path, len(folder), folder.num_bytes)
    return folder


def loaded_alone(
    name: str, runner: ModelRunner, tokenizer: Tokenizer, settings: Settings
) -> LoadedModel:
    """Returns the model of a loaded runner, with empty rows and no draft model."""
    of_model = settings.of_model(name)
    sources = draft_sources(name, runner, of_model)
    max_guesses = of_model.speculation_tokens if sources else 0
    served = ServedModel.of(name, runner, tokenizer, sources, max_guesses=max_guesses)
    return loaded(served, runner, settings)


def bring_up(backend: DecodeBackend) -> None:
    """Serve the models of the settings, if they fit into memory together. Raises StartupError."""
    from inference_api.engine.devices import check_memory
    from inference_api.loading.memory import DRAFT

    models = describe_models(backend.settings)
    runners = {model.served.name: model.runner for model in models}
    for model in models:
        if model.drafter is not None:
            runners[f"{model.served.name}{DRAFT}"] = model.drafter
    check_memory(runners)
    backend.take([model.load() for model in models])


def describe_models(
    settings: Settings, packed: "PackedFolder | None" = None, slots: "Slots | None" = None
) -> Sequence[LoadableModel]:
    """Returns the models of the settings, described from their files. Raises StartupError.

    Models that are loaded on demand use `packed`, the folder of packed weights, and on CUDA
    `slots`. Models step one after another, so those with equal numbers of threads share the
    kernels' threads.
    """
    from inference_api.engine.devices import make_runner, share_memory
    from inference_api.kernels.library import Kernels
    from inference_api.loading.checkpoint import locate
    from inference_api.loading.memory import cache_shares

    kernels_of, budget = cache(Kernels), ByteBudget()
    found, models = [], settings.served_models
    for model in models:
        folder = locate(model.model)
        options = replace(EngineOptions.from_settings(model), num_runners=len(models))
        assistant = find_assistant(model)
        place = None if slots is None else slots.place()
        make = partial(make_runner, kernels_of=kernels_of, packed=packed, place=place)
        runner = make(folder, replace(options, assistant=assistant))
        drafter = None
        if assistant is None:
            drafter = make_drafter(model, folder, options, runner.max_seq_len, make)
        if drafter is not None:
            pair = (runner, drafter)
            shares = cache_shares([each.footprint for each in pair])
            for each, share in zip(pair, shares, strict=True):
                each.cache_share = share
        found.append((model, folder, runner, drafter))
    share_memory([each for *_, runner, drafter in found for each in (runner, drafter) if each])
    disk = pages_folder(settings)
    return [
        LoadableModel(describe_model(*each, budget), settings, *each[-2:], disk) for each in found
    ]


def describe_model(
    model: ModelSettings,
    folder: Path,
    runner: ModelRunner,
    drafter: "LocalRunner | None",
    budget: ByteBudget,
) -> ServedModel:
    """Returns the description of a runner, which need not be loaded. `budget` is the budget in
    bytes that the prompts of all models share. Raises StartupError."""
    tokenizer = load_tokenizer(folder, runner.eos_token_ids)
    sources = draft_sources(model.name, runner, model, drafter)
    max_guesses = model.speculation_tokens if sources else 0
    defaults = read_defaults(folder) if model.generation_config == "auto" else NO_DEFAULTS
    return ServedModel.of(model.name, runner, tokenizer, sources, budget, max_guesses, defaults)


def find_assistant(model: ModelSettings) -> Path | None:
    """Returns the folder of DRAFT_MODEL if it is an assistant, which drafts from the model's own
    keys and values; else None. Raises StartupError."""
    from inference_api.loading.checkpoint import locate
    from inference_api.loading.drafting import is_assistant

    if model.used_draft_model is None:
        return None
    folder = locate(model.used_draft_model, setting="DRAFT_MODEL")
    return folder if is_assistant(folder) else None


def make_drafter(
    model: ModelSettings, model_dir: Path, options: EngineOptions, max_seq_len: int, make: Make
) -> "LocalRunner | None":
    """Returns the runner of DRAFT_MODEL, if set. Raises StartupError if it cannot draft for this
    model. `options` and `max_seq_len` are the model's. `make` makes runners."""
    from inference_api.loading.checkpoint import load_config, locate
    from inference_api.loading.drafting import draft_faults

    if model.used_draft_model is None:
        return None
    folder = locate(model.used_draft_model, setting="DRAFT_MODEL")
    config = load_config(folder)
    if faults := draft_faults(model_dir, folder, config):
        raise StartupError(faults)
    return make(folder, options.of_draft(max_seq_len, config))
