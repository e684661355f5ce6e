"""`ModelRunner` by the kernels or, where these do not serve, by torch on CPU and CUDA."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path

import torch

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.cpu.medusa import MedusaHeads
from inference_api.engine.cuda.attention import TorchAttentions
from inference_api.engine.cuda.decoder import Decoder
from inference_api.engine.cuda.fixed_step import FixedStepDecoder, step_lengths
from inference_api.engine.cuda.medusa import TorchMedusaHeads
from inference_api.engine.cuda.padding import least_rows_multiple
from inference_api.engine.cuda.parameters import TorchParameters, load_torch_parameters
from inference_api.engine.facts import facts_of
from inference_api.engine.kv_cache import KVCache
from inference_api.engine.rope import Rope
from inference_api.engine.sampler import sample
from inference_api.engine.step_decoder import StepDecoder
from inference_api.engine.weight_form import DTYPES, WeightForm, weight_form
from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels
from inference_api.kernels.packing import LAYOUT_VERSION, cache_dtype
from inference_api.loading import checkpoint, hardware
from inference_api.loading.config import SPARE_SLOTS, ModelConfig
from inference_api.loading.files import read_headers, shape_faults
from inference_api.loading.heads import read_heads, tokenizer_sha256
from inference_api.loading.heads_folder import find_heads, heads_bytes
from inference_api.loading.layout import (
    HEAD,
    linear_weights,
    num_parameters,
    num_stacked,
)
from inference_api.loading.memory import Footprint, memory_faults
from inference_api.loading.options import EngineOptions
from inference_api.loading.packing.files import PackedModel
from inference_api.loading.packing.folder import PackedFolder
from inference_api.loading.weights import Parameters, load_parameters
from inference_api.request import SamplingParams
from inference_api.runner import DraftHeads, Draw, RowResult, RowStep, RunnerFacts

logger = logging.getLogger(__name__)

# Threads that share small matrices mostly wait for each other: with 3.5M parameters and 32 rows
# on two cores that have other work too, a step takes 12 ms on one thread and 70-82 ms on two.
MIN_PARAMETERS_TO_SHARE = 30_000_000
WARM_UP_PROMPT_TOKENS = 256


class EngineRunner:
    """One model over `max_rows` user rows. Decode thread only, except the constructor, and, with
    packed files, what comes before steps and after them: `load`, `unload`.

    Once constructed it is described, by its configuration and the headers of its weights; once
    loaded it has `decoder` and `medusa`. The constructor raises StartupError when the model is not
    supported.
    """

    decoder: StepDecoder

    def __init__(
        self,
        model_dir: Path,
        options: EngineOptions,
        kernels_of: Callable[[int], Kernels] | None = None,
        packed: PackedFolder | None = None,
    ) -> None:
        """`kernels_of(n)` returns kernels with n threads, which runners of one thread share; None:
        this runner makes its own. `packed`: the folder of packed weights; the KV cache then takes
        memory as it is written."""
        self._model_dir = model_dir
        self._whole = checkpoint.load_config(model_dir)
        self._config = options.part_of(self._whole)
        self._kernels_of = kernels_of or Kernels
        self._num_threads = _num_threads(self._config)
        self._options = replace(options, device=_device(options.device))
        self._device = torch.device(self._options.device)
        self.max_rows = options.max_rows
        self.max_seq_len = self._config.context(options.max_seq_len)
        self.vocab_size = self._config.vocab_size
        self.hidden_size = self._config.hidden_size
        self.eos_token_ids = self._config.eos_token_ids
        self.is_batch_invariant = self._form.packing is not None
        self.has_medusa_heads = self._heads_folder is not None
        self.medusa: DraftHeads | None = None
        self._packed = packed if self.is_batch_invariant else None

    @property
    def device(self) -> torch.device:
        return self._device

    @cached_property
    def footprint(self) -> Footprint:
        """Returns the model's share of the device's memory. Raises StartupError; see `load`."""
        return self._footprint_of(self._config)

    def _footprint_of(self, config: ModelConfig) -> Footprint:
        is_packed_file = self._packed is not None
        footprint = Footprint.of(config, self._form.options, self._form.bits, is_packed_file)
        folder = self._heads_folder
        if folder is None:
            return footprint
        weights_bytes = footprint.weights_bytes + heads_bytes(folder)
        return replace(footprint, weights_bytes=weights_bytes)

    @cached_property
    def facts(self) -> RunnerFacts:
        """Raises StartupError."""
        footprint = self._footprint_of(self._whole)
        return facts_of(self._whole, self._form, footprint, self._num_threads, self._cache_dtype())

    @property
    def files(self) -> Sequence[Path]:
        """Returns the files of the weights."""
        return self._form.files

    @property
    def num_layers(self) -> int:
        """Returns the number of layers of the whole model."""
        return self._whole.num_layers

    @cached_property
    def agreement(self) -> int:
        """What processes that share a model's layers must agree on, as an int64. Raises
        StartupError."""
        form = self._form
        whole = replace(self._whole, eos_token_ids=frozenset())  # a set has no order
        cache = (self.max_rows, self.max_seq_len, form.options.kv_cache_dtype)
        what = (whole, form.dtype, form.bits, cache, LAYOUT_VERSION)
        return int.from_bytes(sha256(repr(what).encode()).digest()[:8], "big", signed=True)

    def is_packed(self) -> bool:
        """Whether `load` finds what it needs packed already. Reads headers. Raises StartupError."""
        return self._packed is None or self._packed.has(self._packed_model)

    def load(self) -> None:
        """Bring the weights into memory and allocate the KV cache. Raises StartupError; see
        `ModelRunner`.

        From packed files it uses neither the kernels nor torch's threads, which are at work for
        other runners.
        """
        self._check()
        form = self._form
        if self._packed is None:
            self._use_torch_threads()
        self._kernels = None if form.packing is None else form.packing.kernels
        with torch.inference_mode():
            self._cache = KVCache(
                self._config,
                self.max_rows,
                self.max_seq_len + (0 if self.is_batch_invariant else SPARE_SLOTS),
                self._device,
                self._cache_dtype(),
                is_lazy=self._packed is not None,
            )
            parameters = self._parameters()
            if isinstance(parameters, Parameters):
                self.decoder = self._kernel_decoder(parameters)
            else:
                self.decoder = self._torch_decoder(parameters)
            self.medusa = self._medusa_heads(parameters)
        logger.info(
            "loaded %s: %s, %s, cache %s, quantization %s (QUANTIZATION=%s) by %s",
            self._model_dir.name,
            self._device,
            form.dtype,
            self._cache.keys.dtype,
            form.quantization,
            self._options.quantization,
            form.kernels,
        )

    def unload(self) -> None:
        """Give all memory back; nobody else holds `decoder` or `medusa`. `load` brings it again."""
        self.medusa = None
        for name in ("decoder", "_cache"):
            vars(self).pop(name, None)

    def _check(self) -> None:
        """Raises StartupError. Files that will be read may have changed meanwhile."""
        faults: list[str] = []
        if self._packed is None or not self.is_packed():
            faults += shape_faults(
                read_headers(self._form.files, self._config.tensor_names), self._config
            )
        faults += checkpoint.context_faults(self._config, self.max_seq_len)
        needed = self.footprint
        if self._packed is not None:
            needed = replace(needed, cache_bytes=needed.cache_bytes_per_row, rows=1)
        faults += memory_faults({self._model_dir.name: needed}, _available(self._device))
        if faults:
            raise StartupError(faults)

    def _parameters(self) -> Parameters | TorchParameters:
        form = self._form
        if form.packing is None:
            return load_torch_parameters(form.files, self._config, self._device, form.dtype)
        if self._packed is not None:
            return self._packed.load(self._packed_model, form.packing)
        return load_parameters(form.files, self._config, form.options.dtype, form.packing)

    @cached_property
    def _packed_model(self) -> PackedModel:
        form = self._form
        assert form.bits is not None
        name, dtype = self._model_dir.name, form.options.dtype
        return PackedModel(name, form.files, self._config, dtype, form.bits)

    @cached_property
    def _form(self) -> WeightForm:
        return weight_form(
            self._model_dir, self._whole, self._options, lambda: self._kernels_of(self._num_threads)
        )

    def _cache_dtype(self) -> torch.dtype:
        form = self._form
        if form.bits is None:
            return form.dtype
        return DTYPES[cache_dtype(form.options.kv_cache_dtype, form.bits)]

    def _use_torch_threads(self) -> None:
        """The number is the process's, and models differ in it. Two pools of threads would spin on
        each other's cores: torch has one thread where the kernels have the work."""
        num_threads = self._num_threads if self._form.packing is None else 1
        if self._device.type == "cpu" and torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)

    def _kernel_decoder(self, parameters: Parameters) -> StepDecoder:
        rope = Rope(self._config, self.max_seq_len, self._device, torch.float32)
        return KernelDecoder(self._config, parameters, self._cache, rope, self.max_seq_len)

    def _torch_decoder(self, parameters: TorchParameters) -> StepDecoder:
        decoder = Decoder(
            self._config,
            parameters,
            TorchAttentions(self._config, self._cache),
            Rope(self._config, self.max_seq_len, self._device, self._form.dtype),
            self._rows_multiple(parameters),
        )
        if self._device.type == "cuda" and self._config.mixture is None:  # see `Mixture`
            lengths = step_lengths(self.max_seq_len)
            return FixedStepDecoder(self._config, decoder, self._cache, lengths)
        return decoder

    @cached_property
    def _heads_folder(self) -> Path | None:
        """Raises StartupError where heads are named that are not there."""
        if not self._options.has_medusa:
            return None
        return find_heads(self._model_dir, self._options.medusa_heads)

    def _medusa_heads(self, parameters: Parameters | TorchParameters) -> DraftHeads | None:
        """Raises StartupError where heads are named that do not fit."""
        folder = self._heads_folder
        if folder is None:
            return None
        file = read_heads(folder, self._config)
        if file.tokenizer_sha256 not in (None, tokenizer_sha256(self._model_dir)):
            logger.warning(
                "%s was trained beside another tokenizer than that of %s: its guesses will hardly "
                "be accepted; set MEDUSA_HEADS to heads of this model",
                folder,
                self._model_dir,
            )
        logger.info("Medusa heads of %s", folder)
        if isinstance(parameters, TorchParameters):
            return TorchMedusaHeads(file, self._config, parameters)
        packer = None if self._packed is None else Kernels(1)
        return MedusaHeads(file, self._config, parameters, packer)

    def _rows_multiple(self, parameters: TorchParameters) -> int:
        if self._device.type == "cuda":
            return self.max_rows
        weights = [
            parameters.tensors[name].chunk(num_stacked(self._config, name))[0]
            for name in [*linear_weights(self._config), HEAD]
        ]
        by_shape = {weight.shape: weight for weight in weights}
        return least_rows_multiple(list(by_shape.values()), self.max_rows)

    def warm_up(self) -> None:
        """One prompt, then a step of every batch size. Overwrites the cache of all rows."""
        num_tokens = min(WARM_UP_PROMPT_TOKENS, self.max_seq_len - 1)
        self.step([RowStep(0, 0, [0] * num_tokens)])
        with torch.inference_mode():
            self.decoder.warm_up()
        draw = Draw(SamplingParams(top_k=min(40, self.vocab_size)), (0,), ())
        rows = [RowStep(row, 0, (0,), (draw,)) for row in range(self.max_rows)]
        for num_rows in range(1, self.max_rows + 1):
            self.step(rows[:num_rows])

    @torch.inference_mode()
    def step(self, rows: Sequence[RowStep]) -> list[RowResult]:
        assert all(0 <= each.row < self.max_rows for each in rows)
        assert all(0 <= each.start <= self.max_seq_len - len(each.token_ids) for each in rows)
        assert all(min(each.token_ids) >= 0 for each in rows)
        assert all(max(each.token_ids) < self.vocab_size for each in rows)
        self._use_torch_threads()
        logits, hidden = self.decoder.forward(rows)
        draws = [draw for each in rows for draw in each.draws]
        if not draws:
            return [RowResult((), states) for states in hidden]
        positions: list[int] = []
        for each in rows:
            positions += each.positions[each.num_undrawn :]
        drawn = iter(sample(logits, draws, positions, self._kernels))
        return [
            RowResult([*islice(drawn, len(each.draws))], states)
            for each, states in zip(rows, hidden, strict=True)
        ]

    @torch.inference_mode()
    def keep(self, row: RowStep, accepted: Sequence[int]) -> None:
        moved = [token for place, token in enumerate(accepted) if token != place]
        if moved:
            target = row.start + len(accepted) - len(moved)
            self._cache.move(row.row, [row.start + token for token in moved], target)

    @torch.inference_mode()
    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        self._cache.copy_prefix(source, target, num_tokens)

    def release(self, row: int) -> None:
        """Nothing to free: the row's memory is there for the next request."""

    def release_memory(self, row: int) -> None:
        """Give a row's memory back where it is taken as it is written; nothing of it is kept."""
        self._cache.release_row(row)

    def idle(self) -> bool:
        """Nothing to look after."""
        return False

    def close(self) -> None:
        """Its memory goes with it."""


def check_memory(runners: Mapping[str, EngineRunner]) -> None:
    """Raises StartupError when these models, by name, do not fit into their devices together."""
    faults: list[str] = []
    for device in dict.fromkeys(runner.device for runner in runners.values()):
        footprints = {
            name: runner.footprint for name, runner in runners.items() if runner.device == device
        }
        faults += memory_faults(footprints, _available(device))
    if faults:
        raise StartupError(faults)


def _device(name: str) -> str:
    """cpu or cuda."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise StartupError([hardware.NO_CUDA])
    return name


def _num_threads(config: ModelConfig) -> int:
    return hardware.physical_cores() if num_parameters(config) >= MIN_PARAMETERS_TO_SHARE else 1


def _available(device: torch.device) -> int | None:
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    return hardware.available_memory_bytes()
