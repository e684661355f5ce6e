"""`EngineOptions`: the settings that the engine uses."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from inference_api.loading.config import LayerRange, ModelConfig
from inference_api.settings import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine loads a model. Immutable."""

    device: str = "auto"  # auto, cpu or cuda
    card: int = 0  # index of the GPU, modulo the number of GPUs
    dtype: str = "auto"  # auto, float32 or bfloat16
    max_rows: int
    max_seq_len: int | None = None
    """None: the model's context, but at most 2048 if each row has memory of its own."""
    quantization: str = "none"  # auto, none, int8 or int4
    kv_cache_dtype: str = "auto"  # auto, float32, float16, int8 or int4; only for the kernels
    kv_cache_bytes: int | None = None
    """Most memory of pages, for the kernels; None: half of the memory free besides weights."""
    num_runners: int = 1  # how many models share the free memory, draft models aside
    has_medusa: bool = False
    medusa_heads: str | None = None  # the folder of the Medusa heads; None: the model's own
    has_mtp: bool = False
    """Whether to load the layer that guesses further tokens, if the checkpoint has one."""
    assistant: Path | None = None
    """The folder of layers that draft with the model's own keys and values."""
    num_guesses: int = 0  # the most guesses of a row in a step, which recurrent layers log
    experts_on_cpu: int | None = 0
    """Number of layers whose experts a GPU leaves to the CPU; None: the fewest that fit."""
    layers: LayerRange | None = None  # the layers that this process holds; None: all

    @classmethod
    def from_settings(cls, settings: ModelSettings) -> Self:
        return cls(
            device=settings.device,
            dtype=settings.dtype,
            max_rows=settings.user_rows,
            max_seq_len=settings.max_seq_len,
            quantization=settings.quantization,
            kv_cache_dtype=settings.kv_cache_dtype,
            kv_cache_bytes=settings.kv_cache_memory,
            has_medusa=settings.speculation in ("auto", "medusa"),
            medusa_heads=settings.medusa_heads,
            has_mtp=settings.speculation in ("auto", "mtp"),
            experts_on_cpu=settings.experts_on_cpu,
            num_guesses=0 if settings.speculation == "off" else settings.speculation_tokens,
        )

    def with_layers(self, layers: LayerRange | None) -> Self:
        """Returns the options of a process that runs these layers; None: all layers. Of several
        processes, only the first has the Medusa heads, and none the layer that guesses further
        tokens."""
        has_medusa = self.has_medusa and (layers is None or layers.begin == 0)
        has_mtp = self.has_mtp and layers is None
        return replace(self, layers=layers, has_medusa=has_medusa, has_mtp=has_mtp)

    def of_draft(self, context_tokens: int, draft: ModelConfig) -> Self:
        """Returns the options of the draft model that `draft` describes: as many rows as this model
        has, of `context_tokens` or, if that is less, the draft model's own context."""
        options = replace(self, layers=None, has_medusa=False, has_mtp=False, experts_on_cpu=0)
        return replace(options, max_seq_len=min(context_tokens, draft.max_positions))

    def part_of(self, config: ModelConfig) -> ModelConfig:
        """Returns the config of this process's layers of a model."""
        return config if self.layers is None else config.part(self.layers)

    def on(self, device: str, keeps_bfloat16: bool = False) -> Self:
        """Returns the options for `device`, cpu or cuda, with the dtype that auto means there.

        For `keeps_bfloat16` see `settling`. A cache dtype of auto is then float32, as with the
        same weights in float32.
        """
        if self.dtype != "auto":
            return replace(self, device=device)
        is_bfloat16 = device == "cuda" or keeps_bfloat16
        is_exact = self.kv_cache_dtype == "auto" and self.quantization == "none"
        return replace(
            self,
            device=device,
            dtype="bfloat16" if is_bfloat16 else "float32",
            kv_cache_dtype="float32" if is_exact else self.kv_cache_dtype,
        )
