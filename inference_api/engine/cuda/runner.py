"""`ModelRunner` by torch: on CUDA and, for comparison with the kernels, on the CPU."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from inference_api.engine.cpu.decoder import KernelDecoder
from inference_api.engine.cuda.decoder import NO_EXPERTS, PROMPT_SIZES, Decoder
from inference_api.engine.cuda.draws import plan_of
from inference_api.engine.cuda.graphs import SPARE_BYTES, capturing, pinned
from inference_api.engine.cuda.kv_cache import TorchCache
from inference_api.engine.cuda.medusa import TorchMedusaHeads
from inference_api.engine.cuda.mlp import CpuExperts, experts_alone, without_experts
from inference_api.engine.cuda.ops import Operations
from inference_api.engine.cuda.parameters import TorchParameters, load_torch_parameters
from inference_api.engine.cuda.part_decoder import PartDecoder
from inference_api.engine.cuda.rope import Rope
from inference_api.engine.cuda.sampler import sample
from inference_api.engine.cuda.torch_ops import TorchOps
from inference_api.engine.local_runner import LocalRunner
from inference_api.engine.paged_cache import PagedCache
from inference_api.errors import StartupError
from inference_api.kernels.interface import Floats
from inference_api.kernels.library import Kernels
from inference_api.loading import hardware
from inference_api.loading.config import PAGE_TOKENS, num_pages
from inference_api.loading.memory import Footprint, memory_faults, weights_size
from inference_api.loading.options import EngineOptions
from inference_api.loading.settling import expert_layers, kernel_faults, weight_bits
from inference_api.loading.weights import Packing, load_parameters
from inference_api.request import SamplingParams
from inference_api.runner import Draw, Drawn, Hidden, PageLayout, RowStep, RunnerFacts

logger = logging.getLogger(__name__)

ANY_STEP = RowStep(0, 0, (0,), (Draw(SamplingParams(), (), ()),))


def has_cuda() -> bool:
    return torch.cuda.is_available()


class CudaRunner(LocalRunner):
    """One model over `max_rows` user rows."""

    is_batch_invariant = False
    _by_torch = True
    chunk_tokens = max(PROMPT_SIZES)
    decoder: Decoder
    _cache: TorchCache

    def __init__(self, model_dir: Path, options: EngineOptions) -> None:
        """See `LocalRunner`."""
        super().__init__(model_dir, options)
        self._device = torch.device(options.device)
        if options.device == "cuda":
            self._device = torch.device("cuda", options.card % max(torch.cuda.device_count(), 1))
        if self._options.quantization != "none":
            self.bits = weight_bits(self._options)
        self._config = without_experts(self._config, self._num_on_cpu())

    @cached_property
    def facts(self) -> RunnerFacts:
        device = torch.cuda.get_device_name(self._device) if self.device == "cuda" else self.device
        return self._facts(device, torch.get_num_threads(), "torch", self._options.dtype)

    def _num_on_cpu(self) -> int:
        """Returns how many layers leave their experts to the CPU: see `EngineOptions`."""
        requested, most = self._options.experts_on_cpu, len(expert_layers(self._full_config))
        if requested is not None or most == 0 or self._is_part or kernel_faults(self._full_config):
            return requested or 0
        free_bytes = self.free_bytes() or 0
        needed = (self._footprint_of(without_experts(self._full_config, n)) for n in range(most))
        return next((n for n, each in enumerate(needed) if each.total_bytes <= free_bytes), most)

    @cached_property
    def layout(self) -> PageLayout:
        """See `RowMemory`. Pages are bound, because each row's memory is contiguous."""
        count = self.max_rows * num_pages(self.max_seq_len)
        return PageLayout(count, PAGE_TOKENS, self.footprint.page_bytes, is_bound=True)

    def free_bytes(self) -> int | None:
        if self.device == "cpu":
            return hardware.available_memory_bytes()
        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        return max(free_bytes - SPARE_BYTES, 0)

    @torch.inference_mode()
    def load(self) -> None:
        if self.device == "cuda":
            torch.cuda.set_device(self._device)  # for this thread's streams and graphs
        self._check(self.footprint)
        config, dtype = self._config, self._dtype
        on_cpu = self._cpu_experts()
        self._cache = self._new_cache()
        packing = None
        if self.bits is not None:
            packing = Packing(Kernels(hardware.physical_cores()), self.bits)
        parameters = load_torch_parameters(self.files, config, self._device, dtype, packing)
        self.decoder = self._new_decoder(parameters, on_cpu)
        if self._is_part:  # steps are timed before the warm-up
            self._record()
        heads = self._read_heads()
        if heads is not None:
            self.medusa = TorchMedusaHeads(heads, config, parameters)
        self._log_loaded()

    def _cpu_experts(self) -> dict[int, CpuExperts]:
        """Loads the experts that the CPU has, by layer. Raises StartupError."""
        elsewhere = sorted(self._config.experts_elsewhere)
        parts = {layer: experts_alone(self._full_config, layer) for layer in elsewhere}
        if not parts:
            return {}
        dtype, bits = self._options.dtype, weight_bits(self._options)
        num_bytes = sum(weights_size(part, dtype, bits) for part in parts.values())
        needed = Footprint(num_bytes, 1, num_pages=0, rows=1, context_tokens=0)
        named = {f"{self._folder.name}'s experts on the CPU": needed}
        if faults := memory_faults(named, hardware.available_memory_bytes()):
            raise StartupError(faults)
        logger.info("the CPU has the experts of %d layers: %d bytes", len(parts), num_bytes)
        packing = Packing(Kernels(hardware.physical_cores()), bits)
        shape = max(PROMPT_SIZES), self._config.hidden_size
        memory = [pinned(torch.zeros(shape), self._device) for _ in range(2)]
        experts: dict[int, CpuExperts] = {}
        for layer, part in parts.items():
            parameters = load_parameters(self.files, part, dtype, packing)
            cache = PagedCache(part, 1, 1, "float32", 1)  # stays empty: the layer does not attend
            experts[layer] = CpuExperts(KernelDecoder(part, parameters, cache, 1), *memory)
        return experts

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self._options.dtype)
        return dtype

    def _new_cache(self, memory: Tensor | None = None) -> TorchCache:
        """See `TorchCache`."""
        of_rows = self.max_rows, self.max_seq_len
        return TorchCache(self._config, *of_rows, self._device, self._dtype, memory)

    def _new_decoder(
        self, parameters: TorchParameters, on_cpu: Mapping[int, CpuExperts] = NO_EXPERTS
    ) -> Decoder:
        config, num_guesses = self._config, self._options.num_guesses
        kind = PartDecoder if self._is_part else Decoder
        return self._decoder(
            lambda ops: kind(config, parameters, self._cache, ops, num_guesses, on_cpu),
            Rope(config, self.max_seq_len, self._device, self._dtype),
        )

    def _log_loaded(self) -> None:
        options = (self.device, self._options.dtype, self._options.quantization)
        logger.info("loaded %s by torch: %s, %s, QUANTIZATION=%s", self._folder.name, *options)

    def _decoder(self, make: Callable[[Operations], Decoder], rope: Rope) -> Decoder:
        """Returns a decoder with Triton's operations on CUDA, or torch's if Triton does not run."""
        if self.device == "cuda":
            try:
                from inference_api.engine.cuda.triton_ops import TritonOps

                decoder = make(TritonOps(self._config, self._cache, rope))
                decoder.try_out(ANY_STEP)  # compiles the kernels
                return decoder
            except Exception as error:  # from Triton, a compiler or the driver
                logger.warning(
                    "Triton does not run here, and operations by torch serve, in more launches: %s",
                    error,
                )
        return make(TorchOps(self._config, self._cache, rope))

    def warm_up(self) -> None:
        """Run one prompt, record the steps, and run a step of every batch size."""
        self._warm_up_prompt()
        if not self._is_part:
            self._record()
        self._warm_up_rows(range(1, self.max_rows + 1))

    @property
    def _is_part(self) -> bool:
        return self._options.layers is not None

    @torch.inference_mode()
    def _record(self) -> None:
        if self.device == "cuda":
            self.decoder.record(capturing())

    def unload(self) -> None:
        super().unload()
        gc.collect()  # a decoder and its steps refer to each other
        if self.device == "cuda":
            torch.cuda.empty_cache()  # otherwise the memory does not count as free

    @torch.inference_mode()
    def layers(self, rows: Sequence[RowStep], before: Floats, is_prompt: bool) -> Floats:
        """See `LocalRunner`."""
        assert isinstance(self.decoder, PartDecoder)
        return self.decoder.layers(rows, is_prompt, before)

    @torch.inference_mode()
    def _forward(
        self, rows: Sequence[RowStep], draws: Sequence[Draw], positions: Sequence[int]
    ) -> tuple[Sequence[Drawn], Sequence[Hidden | None]]:
        drawn: Sequence[Drawn] = ()
        plan = plan_of(draws, positions)
        if plan is not None:
            token_ids, states = self.decoder.draw(rows, plan)
            drawn = [*map(Drawn, token_ids)]
        if plan is None or min(token_ids, default=0) < 0:  # a draw needs all tokens
            logits, states = self.decoder.forward(rows)
            drawn = sample(logits, draws, positions)
        return drawn, [None if each is None else each.cpu().numpy() for each in states]
