"""`ModelRunner` on the CPU, by the C++ kernels."""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from inference_api.engine.cpu.assistant import Assistant, read_assistant
from inference_api.engine.cpu.decoder import KernelDecoder, Outputs
from inference_api.engine.cpu.medusa import MedusaHeads
from inference_api.engine.cpu.mtp import MtpLayer
from inference_api.engine.local_runner import LocalRunner
from inference_api.engine.paged_cache import PagedCache
from inference_api.engine.sampler import sample
from inference_api.errors import StartupError
from inference_api.kernels.build import library_path
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import Kernels
from inference_api.kernels.packing import LAYOUT_VERSION, cache_dtype
from inference_api.loading import hardware
from inference_api.loading.config import ModelConfig
from inference_api.loading.drafting import assisted
from inference_api.loading.layout import num_parameters
from inference_api.loading.memory import Footprint, cache_faults, weights_size
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.files import PackedModel
from inference_api.loading.packing.folder import PackedFolder
from inference_api.loading.settling import cpu_faults, weight_bits
from inference_api.loading.weights import Packing, Parameters, load_parameters
from inference_api.runner import Draw, Drawn, Hidden, RowStep, RunnerFacts

logger = logging.getLogger(__name__)

# Threads that share small matrices mostly wait for each other: with 3.5M parameters and 32 rows,
# on two cores that have other work too, a step takes 12 ms on one thread and 70-82 ms on two.
MIN_PARAMETERS_TO_SHARE = 30_000_000


class KernelRunner(LocalRunner):
    """One model over `max_rows` user rows. With packed files, `load` and `unload` may be called on
    another thread than the decode thread, while no step runs."""

    is_batch_invariant = True
    chunk_tokens = 256
    decoder: KernelDecoder
    forward: Callable[[Sequence[RowStep]], Outputs]
    """Runs a step by `decoder`, and in a ring of ranks also by the decoders of the others."""
    mtp: MtpLayer | Assistant | None = None
    _cache: PagedCache

    def __init__(
        self,
        model_dir: Path,
        options: EngineOptions,
        kernels_of: Callable[[int], Kernels] = Kernels,
        packed: PackedFolder | None = None,
    ) -> None:
        """`kernels_of(n)` returns kernels with n threads, which runners of one thread may share.
        `packed` is the folder of packed weights, for an expert of a bundle. Raises StartupError if
        the model is not supported, or there are no kernels."""
        self._packed, self._has_packed_file = packed, packed is not None
        super().__init__(model_dir, replace(options, device="cpu"))
        if faults := cpu_faults(self._config, self._options):
            raise StartupError(faults)
        assistants = []
        if options.assistant is not None:
            assistants.append(read_assistant(options.assistant, self._full_config))
            self.has_mtp = True
            self._config = self._full_config = assisted(self._full_config)
        self.bits = weight_bits(self._options)
        is_small = num_parameters(self._config) < MIN_PARAMETERS_TO_SHARE
        self._threads = 1 if is_small else hardware.physical_cores()
        self._packing = Packing(kernels_of(self._threads), self.bits)
        name, form = model_dir.name, (self._options.dtype, self.bits)
        sources = ((self._config, self.files), *assistants)
        self._models = [PackedModel(name, files, config, *form) for config, files in sources]
        self.share_pages(None if packed is not None else self._pages_that_fit())

    def _context(self, config: ModelConfig, max_seq_len: int | None) -> int:
        is_shared = self._packed is None  # experts of a bundle borrow memory row by row
        return max_seq_len or (config.own_context if is_shared else config.context(None))

    @property
    def settled_bytes(self) -> int:
        """See `LocalRunner`. Counts pages only if KV_CACHE_MEMORY is set."""
        footprint = self.footprint
        is_limited = self._options.kv_cache_bytes is not None
        return footprint.total_bytes if is_limited else footprint.weights_bytes

    def leave_room_for(self, others: Sequence[LocalRunner]) -> None:
        """See `LocalRunner`."""
        if self._packed is None:
            self.share_pages(self._pages_that_fit(sum(each.settled_bytes for each in others)))

    def _pages_that_fit(self, others_bytes: int = 0) -> int | None:
        """Returns how many pages fit into KV_CACHE_MEMORY or, if it is not set, into half of the
        free memory; None if that is not known. Raises StartupError if a set one is too small."""
        needed = self._footprint_of(self._config)
        budget_bytes = self._options.kv_cache_bytes
        if budget_bytes is None:
            free_bytes = self.free_bytes()
            if free_bytes is None:
                return None
            free_half_bytes = (free_bytes - needed.weights_bytes - others_bytes) // 2
            own_bytes = int(free_half_bytes * self.cache_share) // self._options.num_runners
            return max(needed.least_pages, needed.pages_within(own_bytes))
        if faults := cache_faults([needed], budget_bytes, [self.cache_share]):
            raise StartupError(faults)
        return needed.pages_within(int(budget_bytes * self.cache_share))

    def share_pages(self, count: int | None) -> None:
        """Set the number of pages before `load`, at most what all rows need; None sets that bound.
        Processes that share a model must have the same number."""
        self._most_pages = count
        for name in ("footprint", "layout", "facts"):
            vars(self).pop(name, None)
        needed = self.footprint
        context = needed.context_tokens
        self.max_seq_len = needed.layout.row_tokens(needed.num_pages, context)

    @cached_property
    def facts(self) -> RunnerFacts:
        return self._facts("cpu", self._threads, self._packing.kernels.variant, self._cache_dtype)

    @cached_property
    def fingerprint(self) -> bytes:
        """Returns a hash of everything that decides a page's contents, except its row's tokens."""
        states = [(file.name, file.stat()) for file in self.files]
        files = [(name, state.st_size, state.st_mtime_ns) for name, state in states]
        full_config = replace(self._full_config, eos_token_ids=frozenset())  # a set has no order
        pages = (self._cache_dtype, *self.layout[1:])
        kernels = (LAYOUT_VERSION, library_path().name, self._packing.kernels.variant)
        identity = (full_config, self._options.dtype, self.bits, pages, kernels, files)
        return sha256(repr(identity).encode()).digest()

    def view_page(self, page: int) -> memoryview:
        """Returns the memory of a page."""
        return self._cache.view_page(page)

    def free_bytes(self) -> int | None:
        return hardware.available_memory_bytes()

    def is_packed(self) -> bool:
        """See `LocalRunner`. Reads headers."""
        return self._packed is None or all(map(self._packed.has, self._models))

    def load(self) -> None:
        """See `LocalRunner`. With packed files this does not use the kernels, which may be running
        other models."""
        is_expert, needed = self._packed is not None, self.footprint
        if is_expert:
            count = needed.layout.row_pages(self.max_seq_len)
            needed = replace(needed, num_pages=count, rows=1)
        self._check(needed, are_files_read=not (is_expert and self.is_packed()))
        config, context, dtype = self._config, self.max_seq_len, self._cache_dtype
        if context < needed.context_tokens:
            logger.warning(
                "%s has contexts of %d tokens, of %d: there is memory for no more; raise "
                "KV_CACHE_MEMORY or free memory",
                *(self._folder.name, context, needed.context_tokens),
            )
        groups, count = needed.groups, self.layout.num_pages
        num_guesses = self._options.num_guesses
        self._cache = PagedCache(config, self.max_rows, context, dtype, count, groups, num_guesses)
        parameters, *of_assistants = map(self._parameters, self._models)
        self.decoder = decoder = KernelDecoder(config, parameters, self._cache, context)
        self.forward = decoder.forward
        if (file := self._read_heads()) is not None:
            packer = None if self._packed is None else Kernels(1)
            self.medusa = MedusaHeads(file, config, parameters, packer)
        if config.has_mtp:
            self.mtp = MtpLayer(config, parameters, self._cache, context)
        for each, own in zip(self._models[1:], of_assistants, strict=True):
            self.mtp = Assistant(each.config, own, decoder, config, self._cache, context)
        logger.info(
            "loaded %s: %s, cache %s, QUANTIZATION=%s, by kernels of %s on %d threads",
            *(self._folder.name, self._options.dtype, dtype, self._options.quantization),
            *(self._packing.kernels.variant, self._threads),
        )

    def _parameters(self, model: PackedModel) -> Parameters:
        if self._packed is not None:
            return self._packed.load(model, self._packing)
        return load_parameters(model.files, model.config, model.dtype, self._packing)

    def _footprint_of(self, config: ModelConfig) -> Footprint:
        footprint, is_file = super()._footprint_of(config), self._has_packed_file
        for model in self._models[1:]:
            size = weights_size(model.config, model.dtype, model.bits, is_file)
            footprint = footprint.beside(size)
        return footprint

    @property
    def all_files(self) -> Sequence[Path]:
        return [file for each in self._models for file in each.files]

    @property
    def shared_weights(self) -> Mapping[Hashable, int]:
        if self._packed is None:
            return {}
        return {(*each.files, each.form): each.layout.file_bytes for each in self._models}

    @property
    def _cache_dtype(self) -> str:
        has_latents = self._config.latent is not None
        return cache_dtype(self._options.kv_cache_dtype, self._packing.bits, has_latents)

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        super().place(row, group, first, pages)
        if self.mtp is not None and first == 0:
            self.mtp.forget(row)

    def keep(self, row: RowStep, accepted: Sequence[int]) -> None:
        super().keep(row, accepted)
        if self.mtp is not None:
            self.mtp.keep(row, accepted)
        num_kept = len(accepted) - (len(row.token_ids) - row.num_guesses)
        if self._config.recurrent is not None and num_kept > 0:
            self.decoder.keep_guesses(row.row, num_kept)

    def layers(self, rows: Sequence[RowStep], before: Floats, is_prompt: bool) -> Floats:
        """See `LocalRunner`. `is_prompt` makes no difference here."""
        return self.decoder.layers(rows, before)

    def _forward(
        self, rows: Sequence[RowStep], draws: Sequence[Draw], positions: Sequence[int]
    ) -> tuple[Sequence[Drawn], Sequence[Hidden | None]]:
        steps = rows
        if isinstance(self.mtp, Assistant):
            steps = [replace(row, wants_hidden=row.wants_hidden or bool(row.draws)) for row in rows]
        logits, hidden = self.forward(steps)
        if self.mtp is not None:
            self.mtp.follow(rows, hidden)
            pairs = zip(rows, hidden, strict=True)
            hidden = [states if each.wants_hidden else None for each, states in pairs]
        drawn = sample(logits, draws, positions, self._packing.kernels) if draws else []
        return drawn, hidden
