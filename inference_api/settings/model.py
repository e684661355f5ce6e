"""`ModelSettings`: the settings of one served model. They come from environment variables, an entry
of MODELS, or an expert of a bundle.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from inference_api.settings.sizes import CountOrAuto, SizeOrAuto
from inference_api.shipped_files import SHIPPED

MIN_CONTEXT_TOKENS = 16  # fewer have no room for a prompt and its answer
EMBEDDED_MODEL = SHIPPED / "models" / "hearth-tiny"

Speculation = Literal["auto", "off", "ngram", "medusa", "mtp", "draft"]
"""The draft source: one by name; `auto` uses all available ones when that pays; `off` uses none."""


def readable(name: str) -> str:
    """Raises ValueError for a name that clients cannot send, or that would break a log line."""
    if not (name.strip("/").isprintable() and name.strip("/ ")):
        raise ValueError("has no printable name; give at least one character, and no line break")
    return name


def kernels_alone(kernels: bool) -> bool:
    """Raises ValueError for false, which only earlier versions supported."""
    if not kernels:
        raise ValueError("is served no more: on the CPU the kernels multiply")
    return kernels


class ModelSettings(BaseModel):
    """Settings that may differ between models. Immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: Annotated[str, AfterValidator(readable)] = Field(str(EMBEDDED_MODEL), max_length=4096)
    model_name: Annotated[str, AfterValidator(readable)] | None = Field(None, max_length=256)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    quantization: Literal["none", "auto", "file", "int8", "int4"] = "auto"
    kernels: Annotated[bool, AfterValidator(kernels_alone)] = True
    kv_cache_dtype: Literal["auto", "float16", "float32", "int8", "int4"] = "auto"
    experts_on_cpu: CountOrAuto = None  # None: auto
    kv_cache_memory: SizeOrAuto = None
    generation_config: Literal["auto", "none"] = "auto"
    user_rows: int = Field(32, ge=1, le=256)
    max_seq_len: int | None = Field(None, ge=MIN_CONTEXT_TOKENS, le=1_048_576)
    speculation: Speculation = "off"
    speculation_tokens: int = Field(8, ge=1, le=32)
    medusa_heads: Annotated[str, AfterValidator(readable)] | None = Field(None, max_length=4096)
    draft_model: Annotated[str, AfterValidator(readable)] | None = Field(None, max_length=4096)

    @property
    def name(self) -> str:
        """The model's name in requests, answers and metrics."""
        file_name = self.model.rstrip("/").rsplit("/", 1)[-1]
        return self.model_name or file_name.removesuffix(".gguf") or file_name

    @property
    def used_draft_model(self) -> str | None:
        """`draft_model` if SPECULATION uses it, else None."""
        return self.draft_model if self.speculation in ("auto", "draft") else None
