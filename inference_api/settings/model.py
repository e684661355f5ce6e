"""`ModelSettings`: the settings of one served model, given by variables, an entry of MODELS, or an
expert of a bundle.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from inference_api.settings.sizes import CountOrAuto, SizeOrAuto
from inference_api.shipped_files import SHIPPED

EMBEDDED_MODEL = SHIPPED / "models" / "hearth-tiny"

Speculation = Literal["auto", "off", "ngram", "medusa", "mtp", "draft"]
"""The draft source: `auto` uses all available ones when it pays, `off` none, else the one named."""


def readable(name: str) -> str:
    """Raises ValueError for a name that no client could send, or that would break a log line."""
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

    model: Annotated[str, AfterValidator(readable)] = Field(
        str(EMBEDDED_MODEL),
        max_length=4096,
        description="Model folder, GGUF file or hub id; default: the embedded model.",
    )
    model_name: Annotated[str, AfterValidator(readable)] | None = Field(
        None,
        max_length=256,
        description="Name clients ask for; default: the last part of MODEL, without .gguf.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Where the model runs; auto: CUDA when there is a GPU, a bundle and a split on "
        "the CPU.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description=(
            "Of weights, and of the cache on CUDA; auto: bfloat16 on CUDA, and where the "
            "checkpoint's are, else float32."
        ),
    )
    quantization: Literal["none", "auto", "file", "int8", "int4"] = Field(
        "auto",
        description=(
            "Form of linear maps; auto: as a quantised file has them, where the kernels can, else "
            "int8; none for other files. file: auto on any processor."
        ),
    )
    kernels: Annotated[bool, AfterValidator(kernels_alone)] = Field(
        True, description="false, which had torch multiply on the CPU, is refused."
    )
    kv_cache_dtype: Literal["auto", "float16", "float32", "int8", "int4"] = Field(
        "auto",
        description=(
            "Of the kernels' cache; auto: int8 with QUANTIZATION, float16 with DTYPE=bfloat16 "
            "or latents, else float32; int8 is half of float16, and int4 about half of int8."
        ),
    )
    experts_on_cpu: CountOrAuto = Field(
        None,
        description=(
            "Of a mixture on CUDA, how many layers' experts the CPU computes, from its own memory; "
            "auto: as many as the GPU has no room for."
        ),
    )
    kv_cache_memory: SizeOrAuto = Field(
        None,
        description=(
            "What all rows of a model and its draft model remember may take so much memory, on the "
            "CPU: 8GiB; auto: half of what is free beside the weights, or what all rows need."
        ),
    )
    generation_config: Literal["auto", "none"] = Field(
        "auto",
        description=(
            "auto: how tokens are drawn for requests that say nothing of it is taken from the "
            "model's generation_config.json."
        ),
    )
    user_rows: int = Field(32, ge=1, le=256, description="Requests decoded together.")
    max_seq_len: int | None = Field(
        None,
        ge=16,
        le=1_048_576,
        description=(
            "Context of a row in tokens; default: the model's own, on CUDA and in a bundle at most "
            "2048."
        ),
    )
    speculation: Speculation = Field(
        "off",
        description=(
            "Guess several tokens of a step: ngram, what followed the row's last "
            "tokens before; medusa, by heads trained for the model; mtp, by a layer of the model's "
            "own; draft, by DRAFT_MODEL; auto: all there are, where it is measured to pay."
        ),
    )
    speculation_tokens: int = Field(
        8, ge=1, le=32, description="Most tokens guessed for a row in one step."
    )
    medusa_heads: str | None = Field(
        None,
        max_length=4096,
        description="Folder or hub id of Medusa heads; default: `medusa` in the model's folder.",
    )
    draft_model: Annotated[str, AfterValidator(readable)] | None = Field(
        None,
        max_length=4096,
        description="Folder, GGUF file or hub id of a small model of the same vocabulary.",
    )

    @property
    def name(self) -> str:
        """The model's name in requests, answers and metrics."""
        file_name = self.model.rstrip("/").rsplit("/", 1)[-1]
        return self.model_name or file_name.removesuffix(".gguf") or file_name

    @property
    def used_draft_model(self) -> str | None:
        """`draft_model`, if SPECULATION uses it; else None."""
        return self.draft_model if self.speculation in ("auto", "draft") else None
