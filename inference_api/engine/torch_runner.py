"""`ModelRunner` on torch: CPU and CUDA, float32 and bfloat16, by one code path."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from inference_api.engine import checkpoint, hardware
from inference_api.engine.attention import Attentions, TorchAttentions
from inference_api.engine.config import ModelConfig
from inference_api.engine.decoder import Decoder
from inference_api.engine.kernel_attention import KernelAttentions
from inference_api.engine.kv_cache import KVCache
from inference_api.engine.layout import num_parameters
from inference_api.engine.linear import Quantisation
from inference_api.engine.rope import Rope
from inference_api.engine.runner import DecodeInput
from inference_api.engine.sampler import sample
from inference_api.engine.weight_files import read_headers, shape_faults, weight_files
from inference_api.engine.weights import load_parameters
from inference_api.errors import StartupError
from inference_api.kernels.library import Kernels, KernelsUnavailable
from inference_api.kernels.packing import BITS
from inference_api.request import SamplingParams

logger = logging.getLogger(__name__)

# oneDNN and MKL add a row's products in an order that depends on how many rows there are, and
# gives every multiple of 4 the same one (measured: float32 and bfloat16, AVX2 and AVX-512).
CPU_ROWS_MULTIPLE = 4
# Threads that share small matrices mostly wait for each other: with 3.5M parameters and 32 rows
# on two cores that have other work too, a step takes 12 ms on one thread and 70-82 ms on two.
MIN_PARAMETERS_TO_SHARE = 30_000_000
WARM_UP_PROMPT_TOKENS = 256
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchRunner:
    """One model over `max_rows` user rows. Decode thread only, except the constructor.

    `vocab_size`, `max_seq_len` and `eos_token_ids` are known once constructed, `decoder` once
    loaded. The constructor raises StartupError when the model is not supported.
    """

    decoder: Decoder

    def __init__(
        self,
        model_dir: Path,
        device: str,
        dtype: str,
        max_rows: int,
        max_seq_len: int | None,
        quantization: str = "none",
    ) -> None:
        """`device` is auto, cpu or cuda; `dtype` auto, float32 or bfloat16; `max_seq_len` None
        is the model's context, at most 2048; `quantization` none, int8 or int4."""
        self._model_dir = model_dir
        self._config = checkpoint.load_config(model_dir)
        self._device = _device(device)
        self._dtype = _dtype(dtype, self._device)
        self._quantization = quantization
        self.max_rows = max_rows
        self.max_seq_len = self._config.context(max_seq_len)
        self.vocab_size = self._config.vocab_size
        self.eos_token_ids = self._config.eos_token_ids

    def load(self) -> None:
        """Read the weights and allocate the KV cache. Raises StartupError; see `ModelRunner`."""
        quantisation = self._quantisation()
        if self._device.type == "cpu":
            # Two pools of threads would spin on each other's cores: the kernels' has the work.
            torch.set_num_threads(_num_threads(self._config) if quantisation is None else 1)
        files = weight_files(self._model_dir)
        faults = shape_faults(read_headers(files), self._config)
        faults += checkpoint.context_faults(self._config, self.max_seq_len)
        faults += checkpoint.memory_faults(
            self._config,
            self.max_rows,
            self.max_seq_len,
            self._dtype.itemsize,
            _available_bytes(self._device),
            "none" if quantisation is None else self._quantization,
        )
        if faults:
            raise StartupError(faults)
        place = (self._device, self._dtype)
        with torch.inference_mode():
            self.decoder = Decoder(
                self._config,
                load_parameters(files, self._config, *place, quantisation),
                self._attentions(
                    KVCache(self._config, self.max_rows, self.max_seq_len, *place), quantisation
                ),
                Rope(self._config.rope, self._config.head_dim, self.max_seq_len, *place),
                self._rows_multiple(quantisation),
            )
        form = "none" if quantisation is None else f"int{quantisation.bits}"
        variant = "" if quantisation is None else f" by {quantisation.kernels.variant}"
        logger.info(
            "loaded %s: %s, %s, quantization %s%s",
            self._model_dir.name,
            self._device,
            self._dtype,
            form,
            variant,
        )

    def _quantisation(self) -> Quantisation | None:
        """What QUANTIZATION asks for; None where it asks for nothing or there are no kernels.

        Raises StartupError when this model or device cannot have it.
        """
        if self._quantization == "none":
            return None
        faults = checkpoint.quantization_faults(self._config, self._device.type, self._quantization)
        if faults:
            raise StartupError(faults)
        try:
            kernels = Kernels(_num_threads(self._config))
        except KernelsUnavailable as error:
            logger.warning(
                "QUANTIZATION=%s is ignored and torch multiplies by the weights as they are, "
                "because %s",
                self._quantization,
                error,
            )
            return None
        return Quantisation(kernels, BITS[self._quantization])

    def _attentions(self, cache: KVCache, quantisation: Quantisation | None) -> Attentions:
        if quantisation is None or not KernelAttentions.can_serve(self._config, self._dtype):
            return TorchAttentions(self._config, cache)
        return KernelAttentions(self._config, cache, quantisation.kernels)

    def _rows_multiple(self, quantisation: Quantisation | None) -> int:
        if self._device.type == "cuda":
            return self.max_rows
        return CPU_ROWS_MULTIPLE if quantisation is None else 1

    def warm_up(self) -> None:
        """One prompt, then a step of every batch size. Overwrites the cache of all rows."""
        num_tokens = min(WARM_UP_PROMPT_TOKENS, self.max_seq_len - 1)
        self.prefill(0, 0, [0] * num_tokens)
        params = SamplingParams(top_k=min(40, self.vocab_size))
        step = [DecodeInput(row, 0, 0, params, (0,), ()) for row in range(self.max_rows)]
        for num_rows in {*range(CPU_ROWS_MULTIPLE, self.max_rows, CPU_ROWS_MULTIPLE), len(step)}:
            self.decode(step[:num_rows])

    @torch.inference_mode()
    def prefill(self, row: int, start: int, token_ids: Sequence[int]) -> None:
        assert 0 <= row < self.max_rows
        assert 0 <= start < start + len(token_ids) <= self.max_seq_len
        self.decoder.prefill(row, start, token_ids)

    @torch.inference_mode()
    def decode(self, inputs: Sequence[DecodeInput]) -> list[int]:
        assert 0 < len(inputs) <= self.max_rows
        assert all(0 <= row.position < self.max_seq_len for row in inputs)
        logits = self.decoder.decode(
            [row.token_id for row in inputs],
            [row.row for row in inputs],
            [row.position for row in inputs],
        )
        return sample(logits, inputs)

    def release(self, row: int) -> None:
        """Nothing to free: the row's memory is there for the next request."""


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise StartupError(
            ["DEVICE=cuda, but torch finds no CUDA device; set DEVICE=cpu or check the driver."]
        )
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16"
    return DTYPES[name]


def _num_threads(config: ModelConfig) -> int:
    return hardware.physical_cores() if num_parameters(config) >= MIN_PARAMETERS_TO_SHARE else 1


def _available_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    return hardware.available_memory_bytes()
