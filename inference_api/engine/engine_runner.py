"""`ModelRunner` by the kernels or, where these do not serve, by torch on CPU and CUDA."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from inference_api.engine import hardware
from inference_api.engine.attention import TorchAttentions
from inference_api.engine.decoder import Decoder
from inference_api.engine.fixed_step import FixedStepDecoder, step_lengths
from inference_api.engine.kernel_decoder import KernelDecoder
from inference_api.engine.kv_cache import KVCache
from inference_api.engine.linear import Packing
from inference_api.engine.loading import checkpoint
from inference_api.engine.loading.config import ModelConfig
from inference_api.engine.loading.layout import (
    HEAD,
    Tensors,
    decodes_by_kernels,
    linear_weights,
    num_parameters,
)
from inference_api.engine.loading.weight_files import read_headers, shape_faults, weight_files
from inference_api.engine.loading.weights import Parameters, load_parameters
from inference_api.engine.options import EngineOptions
from inference_api.engine.padding import least_rows_multiple
from inference_api.engine.rope import Rope
from inference_api.engine.runner import Draw, RowResult, RowStep
from inference_api.engine.sampler import sample
from inference_api.engine.step_decoder import StepDecoder
from inference_api.errors import StartupError
from inference_api.kernels.library import PORTABLE, Kernels, KernelsUnavailable
from inference_api.kernels.packing import FLOAT_BITS, Bits, cache_dtype
from inference_api.request import SamplingParams

logger = logging.getLogger(__name__)

# Threads that share small matrices mostly wait for each other: with 3.5M parameters and 32 rows
# on two cores that have other work too, a step takes 12 ms on one thread and 70-82 ms on two.
MIN_PARAMETERS_TO_SHARE = 30_000_000
WARM_UP_PROMPT_TOKENS = 256
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CACHE_DTYPES = {"float16": torch.float16, "float32": torch.float32, "int8": torch.int8}


class EngineRunner:
    """One model over `max_rows` user rows. Decode thread only, except the constructor.

    Draws that a row has several of in one step are exact by the kernels and by torch on the CPU; on
    CUDA they are those of single steps up to rounding, so that near ties may be drawn otherwise.
    `vocab_size`, `max_seq_len` and `eos_token_ids` are known once constructed, `decoder` and
    `is_batch_invariant` once loaded. The constructor raises StartupError when the model is not
    supported.
    """

    decoder: StepDecoder

    def __init__(self, model_dir: Path, options: EngineOptions) -> None:
        self._model_dir = model_dir
        self._config = checkpoint.load_config(model_dir)
        self._options = replace(options, device=_device(options.device))
        self._device = torch.device(self._options.device)
        self.max_rows = options.max_rows
        self.max_seq_len = self._config.context(options.max_seq_len)
        self.vocab_size = self._config.vocab_size
        self.eos_token_ids = self._config.eos_token_ids
        self.is_batch_invariant = False

    def load(self) -> None:
        """Read the weights and allocate the KV cache. Raises StartupError; see `ModelRunner`."""
        files = weight_files(self._model_dir)
        tensors = read_headers(files)
        packing = self._choose_form(tensors)
        if self._device.type == "cpu":
            # Two pools of threads would spin on each other's cores: the kernels' has the work.
            torch.set_num_threads(_num_threads(self._config) if packing is None else 1)
        bits = None if packing is None else packing.bits
        self._kernels = None if packing is None else packing.kernels
        faults = shape_faults(tensors, self._config)
        faults += checkpoint.context_faults(self._config, self.max_seq_len)
        available_bytes = _available_bytes(self._device)
        faults += checkpoint.memory_faults(self._config, self._options, available_bytes, bits)
        if faults:
            raise StartupError(faults)
        place = (self._device, self._dtype)
        self.is_batch_invariant = decodes_by_kernels(self._config, bits)
        with torch.inference_mode():
            self._cache = KVCache(
                self._config, self.max_rows, self.max_seq_len, self._device, self._cache_dtype(bits)
            )
            parameters = load_parameters(files, self._config, *place, packing)
            self.decoder = self._decoder(parameters)
        logger.info(
            "loaded %s: %s, %s, cache %s, quantization %s by %s",
            self._model_dir.name,
            self._device,
            self._dtype,
            self._cache.keys.dtype,
            "none" if packing is None else self._options.quantization,
            "torch" if packing is None else packing.kernels.variant,
        )

    def _choose_form(self, tensors: Tensors) -> Packing | None:
        """Settle what auto means for these weights, as far as there are kernels for it."""
        asked, device = self._options, self._device.type
        keeps_bfloat16 = checkpoint.keeps_bfloat16(self._config, asked, tensors)
        self._options = asked.on(device, keeps_bfloat16)
        packing = self._packing()
        if packing is None:
            self._options = asked.on(device)
        self._dtype = DTYPES[self._options.dtype]
        return packing

    def _packing(self) -> Packing | None:
        """What the kernels are to have; None where torch multiplies by the weights as they are.

        Raises StartupError when this model or device cannot have what QUANTIZATION asks for.
        """
        faults = checkpoint.quantization_faults(self._config, self._options)
        if faults:
            raise StartupError(faults)
        if self._device.type != "cpu":
            return None
        bits = checkpoint.weight_bits(self._config, self._options)
        if bits is None:
            return None
        try:
            kernels = Kernels(_num_threads(self._config))
        except KernelsUnavailable as error:
            quantization = self._options.quantization
            ignored = f"QUANTIZATION={quantization} is ignored and "
            logger.warning(
                "%storch multiplies by the weights as they are, because %s",
                "" if quantization == "none" else ignored,
                error,
            )
            return None
        if bits in FLOAT_BITS.values() and kernels.variant == PORTABLE:
            return None  # with many rows torch is faster
        return Packing(kernels, bits)

    def _cache_dtype(self, bits: Bits | None) -> torch.dtype:
        if bits is None or not self.is_batch_invariant:
            return self._dtype
        return CACHE_DTYPES[cache_dtype(self._options.kv_cache_dtype, bits)]

    def _decoder(self, parameters: Parameters) -> StepDecoder:
        def rope(dtype: torch.dtype) -> Rope:
            config = self._config
            return Rope(config.rope, config.head_dim, self.max_seq_len, self._device, dtype)

        if self.is_batch_invariant:
            return KernelDecoder(
                self._config, parameters, self._cache, rope(torch.float32), self.max_seq_len
            )
        decoder = Decoder(
            self._config,
            parameters,
            TorchAttentions(self._config, self._cache),
            rope(self._dtype),
            self._rows_multiple(parameters),
        )
        if self._device.type == "cuda":
            lengths = step_lengths(self.max_seq_len)
            return FixedStepDecoder(self._config, decoder, self._cache, lengths)
        return decoder

    def _rows_multiple(self, parameters: Parameters) -> int:
        if parameters.packing is not None:
            return 1
        if self._device.type == "cuda":
            return self.max_rows
        by_shape = {
            parameters.tensors[name].shape: parameters.tensors[name]
            for name in [*linear_weights(self._config), HEAD]
        }
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


def _device(name: str) -> str:
    """cpu or cuda."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise StartupError([hardware.NO_CUDA])
    return name


def _num_threads(config: ModelConfig) -> int:
    return hardware.physical_cores() if num_parameters(config) >= MIN_PARAMETERS_TO_SHARE else 1


def _available_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    return hardware.available_memory_bytes()
