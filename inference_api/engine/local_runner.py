"""`LocalRunner`, the base of the kernels' runner and torch's. It reads a model's configuration and
headers, and does everything about a step except the decoder's work."""

import logging
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.kernels.packing import LAYOUT_VERSION, Bits
from inference_api.loading import checkpoint
from inference_api.loading.config import PAGE_TOKENS, ModelConfig
from inference_api.loading.drafting import find_heads, heads_bytes
from inference_api.loading.files import read_headers, shape_faults, weight_files
from inference_api.loading.heads import MedusaFile, read_heads, tokenizer_sha256
from inference_api.loading.layout import Tensors, num_parameters, num_rounded
from inference_api.loading.memory import Footprint, memory_faults
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import context_faults, settle
from inference_api.request import SamplingParams
from inference_api.runner import (
    DraftHeads,
    DraftLayer,
    Draw,
    Drawn,
    Hidden,
    ModelRunner,
    PageLayout,
    RowResult,
    RowStep,
    RunnerFacts,
    place_own_pages,
)

logger = logging.getLogger(__name__)

WARM_UP_PROMPT_TOKENS = 256
INT4_COST = "with SmolLM2-135M, perplexity is 15.6 instead of int8's 14.2 (docs/benchmarks.md)"


class RowCache(Protocol):
    """The KV cache of a runner; see `PagedCache`."""

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None: ...

    def has(self, row: int, group: int, page: int) -> bool: ...

    def copy_page(self, source: int, target: int) -> None: ...

    def give_back(self, pages: Sequence[int]) -> None: ...

    def move(self, row: int, sources: Sequence[int], target: int) -> None: ...


class LocalRunner(ModelRunner):
    """Runs a model, or some of its layers, in the memory of this process or its GPU.

    The constructor reads the configuration and the headers of the weights; `load` brings the
    weights, `medusa` and `mtp`. Decode thread only, except for the constructor.
    """

    is_batch_invariant: bool
    chunk_tokens: int
    bits: Bits | None = None
    """The form of packed weights; None if torch uses weights that are not packed."""
    _by_torch: bool = False
    _has_packed_file: bool = False
    _most_pages: int | None = None  # None: as many as all rows need
    medusa: DraftHeads | None = None
    mtp: DraftLayer | None = None
    _cache: RowCache
    cache_share = 1.0  # its part of KV_CACHE_MEMORY, which a model and its draft model share

    def __init__(self, model_dir: Path, options: EngineOptions) -> None:
        """`options.device` is not auto. Raises StartupError if the model is not supported, or does
        not support these options."""
        self._folder = model_dir
        file_config = checkpoint.load_config(model_dir)
        self.files = weight_files(model_dir)
        tensors = read_headers(self.files, file_config.tensor_names)
        full_config, settled, faults = settle(file_config, options, tensors)
        if faults:
            raise StartupError(faults)
        self._full_config, self._config = full_config, (config := options.part_of(full_config))
        _log_losses(model_dir.name, full_config, settled, tensors)
        context = self._context(config, options.max_seq_len)
        self._options = replace(settled, max_seq_len=context)
        self._heads = find_heads(model_dir, options.medusa_heads) if options.has_medusa else None
        self.device = options.device
        self.max_rows = options.max_rows
        self.max_seq_len = context
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.eos_token_ids = config.eos_token_ids
        self.has_medusa_heads = self._heads is not None
        self.has_mtp = config.has_mtp

    def _context(self, config: ModelConfig, max_seq_len: int | None) -> int:
        """Returns the most tokens of a row. `max_seq_len` is MAX_SEQ_LEN; None if it is not set."""
        return config.context(max_seq_len)

    @cached_property
    def footprint(self) -> Footprint:
        """Returns the model's share of the device's memory."""
        return self._footprint_of(self._config)

    def _footprint_of(self, config: ModelConfig) -> Footprint:
        bounds = (self._has_packed_file, self._most_pages, self._by_torch)
        footprint = Footprint.of(config, self._options, self.bits, *bounds)
        return footprint if self._heads is None else footprint.beside(heads_bytes(self._heads))

    @cached_property
    def layout(self) -> PageLayout:
        """See `RowMemory`."""
        return self.footprint.layout

    @property
    def all_files(self) -> Sequence[Path]:
        """Returns the files of all weights except Medusa heads."""
        return self.files

    @property
    def shared_weights(self) -> Mapping[Hashable, int]:
        """Returns by key the bytes of each packed file. Runners of the same weights share it."""
        return {}

    def _facts(self, device: str, threads: int, kernels: str, cache_dtype: str) -> RunnerFacts:
        footprint = self._footprint_of(self._full_config)
        return RunnerFacts(
            family=self._full_config.family,
            num_parameters=num_parameters(self._full_config),
            num_layers=self._full_config.num_layers,
            device=device,
            threads=threads,
            kernels=kernels,
            dtype=self._options.dtype,
            quantization=self._options.quantization,
            kv_cache_dtype=cache_dtype,
            weights_bytes=footprint.weights_bytes,
            cache_bytes=footprint.cache_bytes,
        )

    @property
    def is_alone(self) -> bool:
        """Whether no other runner, among those that options count, uses memory of its device."""
        return self._by_torch or self._options.num_runners == 1

    @property
    def num_layers(self) -> int:
        """Returns the number of layers of the whole model."""
        return self._full_config.num_layers

    @cached_property
    def agreement(self) -> int:
        """Returns a hash, as an int64, of what processes that share a model must agree on."""
        options = self._options
        full_config = replace(self._full_config, eos_token_ids=frozenset())  # a set has no order
        cache = (self.max_rows, options.max_seq_len, options.kv_cache_dtype)
        steps = (self._by_torch, self._by_torch and options.num_guesses)  # they decide their sizes
        identity = (full_config, options.dtype, self.bits, cache, LAYOUT_VERSION, steps)
        return int.from_bytes(sha256(repr(identity).encode()).digest()[:8], "big", signed=True)

    def share_pages(self, count: int | None) -> None:
        """Set the number of pages before `load`, if it is not fixed."""

    @abstractmethod
    def layers(self, rows: Sequence[RowStep], before: Floats, is_prompt: bool) -> Floats:
        """Returns the residual after these layers, [tokens, hidden size], valid until the next
        call. `before` is the residual before them. A prompt is one row and runs in one step."""

    @property
    def settled_bytes(self) -> int:
        """Returns the memory that the model takes in any case, however much is free."""
        return self.footprint.total_bytes

    def leave_room_for(self, others: Sequence["LocalRunner"]) -> None:
        """Limit the pages to the memory that `others` leave on the device. Call it before
        `load`."""

    @property
    @abstractmethod
    def facts(self) -> RunnerFacts: ...

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Returns the free memory of the device; None if it is not known."""

    def is_packed(self) -> bool:
        """Returns whether `load` finds packed weights. Raises StartupError."""
        return True

    @abstractmethod
    def load(self) -> None:
        """Bring the weights into memory and allocate the KV cache. Raises StartupError."""

    def _check(self, needed: Footprint, are_files_read: bool = True) -> None:
        """Raises StartupError if memory is too small, or files to read have changed."""
        faults: list[str] = []
        if are_files_read:
            tensors = read_headers(self.files, self._config.tensor_names)
            faults += shape_faults(tensors, self._options.part_of(self._full_config))
        faults += context_faults(self._config, needed.context_tokens)
        faults += memory_faults({self._folder.name: needed}, self.free_bytes())
        if faults:
            raise StartupError(faults)

    def _read_heads(self) -> MedusaFile | None:
        """Returns the Medusa heads, if any. Raises StartupError if they do not fit the model."""
        if self._heads is None:
            return None
        file = read_heads(self._heads, self._config)
        if file.tokenizer_sha256 not in (None, tokenizer_sha256(self._folder)):
            logger.warning(
                "%s was trained beside another tokenizer than that of %s: its guesses will hardly "
                "be accepted; set MEDUSA_HEADS to heads of this model",
                *(self._heads, self._folder),
            )
        logger.info("Medusa heads of %s", self._heads)
        return file

    def unload(self) -> None:
        """Free all memory that `load` took. `load` may be called again."""
        self.medusa = self.mtp = None
        for name in ("decoder", "forward", "_cache"):
            vars(self).pop(name, None)

    def warm_up(self) -> None:
        """Run one prompt, then a step of all rows; this covers smaller ones. Overwrites pages."""
        self._warm_up_prompt()
        self._warm_up_rows([self.max_rows])

    def _warm_up_prompt(self) -> None:
        num_tokens = min(WARM_UP_PROMPT_TOKENS, place_own_pages(self) - 1)
        self.step([RowStep(0, 0, [0] * num_tokens)])

    def _warm_up_rows(self, sizes: Iterable[int]) -> None:
        draw = Draw(SamplingParams(top_k=min(40, self.vocab_size)), (0,), ())
        rows = [RowStep(row, 0, (0,), (draw,)) for row in range(self.max_rows)]
        for size in sizes:
            self.step(rows[:size])

    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        draws: list[Draw] = []
        positions: list[int] = []
        for each in rows:
            ids = each.token_ids
            assert 0 <= each.row < self.max_rows
            assert 0 <= each.start <= self.max_seq_len - len(ids)
            assert min(ids) >= 0
            assert max(ids) < self.vocab_size
            # Pages of earlier tokens and of other groups are always placed before this one.
            assert self.has_page(each.row, -1, (each.start + len(ids) - 1) // PAGE_TOKENS)
            draws += each.draws
            positions += each.positions[each.num_undrawn :]
        all_drawn, hidden = self._forward(rows, draws, positions)
        results, end = [], 0
        for each, states in zip(rows, hidden, strict=True):
            begin, end = end, end + len(each.draws)
            results.append(RowResult(all_drawn[begin:end], states))
        return results

    def has_page(self, row: int, group: int, page: int) -> bool:
        """Returns whether a row's page of this group was placed."""
        return self._cache.has(row, group, page)

    @abstractmethod
    def _forward(
        self, rows: Sequence[RowStep], draws: Sequence[Draw], positions: Sequence[int]
    ) -> tuple[Sequence[Drawn], Sequence[Hidden | None]]:
        """Returns a token for each of `draws`, after `positions`, and the rows' hidden states."""

    def keep(self, row: RowStep, accepted: Sequence[int]) -> None:
        moved = [token for place, token in enumerate(accepted) if token != place]
        if moved:
            target = row.start + len(accepted) - len(moved)
            self._cache.move(row.row, [row.start + token for token in moved], target)

    def place(self, row: int, group: int, first: int, pages: Sequence[int]) -> None:
        assert all(0 <= page < self.layout.num_pages for page in pages)
        self._cache.place(row, group, first, pages)

    def copy_page(self, source: int, target: int) -> None:
        self._cache.copy_page(source, target)

    def give_back(self, pages: Sequence[int]) -> None:
        self._cache.give_back(pages)

    def idle(self) -> bool:
        """Does nothing."""
        return False

    def close(self) -> None:
        """Does nothing: memory is freed with the object."""


def _log_losses(name: str, config: ModelConfig, settled: EngineOptions, tensors: Tensors) -> None:
    """Warn if QUANTIZATION makes this model's answers worse."""
    count = num_rounded(config, tensors) if settled.quantization == "int4" else 0
    if count:
        logger.warning(
            "QUANTIZATION=int4 rounds %d matrices of %s that its file has in another form, and "
            "answers are worse for it: %s; set QUANTIZATION=int8",
            *(count, name, INT4_COST),
        )
