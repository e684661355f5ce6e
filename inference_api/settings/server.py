"""Every setting of the API process: one frozen object, read from the environment once.

`docs/settings.md` says what each variable means; a test compares names, defaults and bounds.
"""

import json
import re
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode, SettingsConfigDict

from common.addresses import LOCAL, Hosts, Origins
from common.logs import LogFormat, LogLevel
from common.paths import UserPath, expanded
from common.startup import EnvironmentSettings, read_settings
from inference_api.errors import StartupError, UnknownModel
from inference_api.settings.bundle_file import Bundle, BundleMember, read_bundle
from inference_api.settings.model import EMBEDDED_MODEL, ModelSettings
from inference_api.settings.sizes import Size

CONTROL_THREADS = 16  # request threads in addition, so that there is always one for /health
MAX_MODELS = 8
MAX_ALIASES = 64
MAX_NAME_CHARS = 256
ANY = "*"  # matches any characters in an alias
MIN_RANKS, MAX_RANKS = 2, 256
Alias = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
# Variables that must be unset with BUNDLE, because keys of the bundle's file replace them.
REPLACED_BY_BUNDLE = (
    *("model", "model_name", "models", "quantization", "max_seq_len", "speculation"),
    *("medusa_heads", "draft_model", "max_input_qsize", "batching", "kv_cache_memory"),
)


def _layers(value: object) -> object:
    """Raises ValueError."""
    if not isinstance(value, str) or value == "auto":
        return value
    layers = value.split(",")
    if not (MIN_RANKS <= len(layers) <= MAX_RANKS and all(_is_count(each) for each in layers)):
        raise ValueError(
            f"is neither auto nor {MIN_RANKS} to {MAX_RANKS} numbers of layers, as in 12,10,10"
        )
    return tuple(map(int, layers))


def _is_count(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and 1 <= len(text) <= 4 and int(text) >= 1


class Settings(EnvironmentSettings, ModelSettings):
    """The settings of the API process. Immutable; any thread may read it.

    The variables of `ModelSettings` apply to the only model; with MODELS they are the defaults of
    its entries. Read the settings of a model from `served_models`.
    """

    model_config = SettingsConfigDict(populate_by_name=True, protected_namespaces=())

    models: Annotated[tuple[ModelSettings, ...], NoDecode] = Field((), max_length=MAX_MODELS)
    service_host: str = "127.0.0.1"
    service_port: int = Field(7000, ge=1, le=65535)
    model_aliases: Annotated[tuple[Alias, ...], NoDecode] = Field(
        ("falcon40b",), max_length=MAX_ALIASES
    )
    strict_bounds: Literal["aliases", "always", "never"] = "aliases"
    max_input_qsize: int = Field(64, ge=1, le=4096)
    batching: Literal["continuous", "dynamic"] = "continuous"
    bundle: Annotated[Bundle | None, NoDecode] = None
    packed_folder: UserPath = Path("var/packed")
    max_batch: int = Field(4, ge=1, le=256, validate_default=True)
    batch_timeout_ms: float = Field(100.0, ge=0, le=60_000)
    prefill_chunk_tokens: int | None = Field(None, ge=1, le=65536)
    itl_budget: float = Field(1.4, ge=1, le=1000)
    itl_budget_ms: float | None = Field(None, gt=0, le=60_000)
    prefix_reuse: bool = True
    prefix_cache_dir: UserPath | None = None
    prefix_cache_size: Size = 8 * 2**30
    keepalive_period_s: float = Field(120.0, alias="KEEPALIVE_PERIOD_SECONDS", gt=0, le=86_400)
    load_timeout_s: float = Field(3600.0, alias="LOAD_TIMEOUT", ge=1, le=86_400)
    drain_timeout_s: float = Field(60.0, alias="DRAIN_TIMEOUT", ge=0, le=3600)
    stream_end_marker: str = ""
    mock_model: bool = False
    mock_tokens_per_second: float = Field(3000.0, ge=0.01, le=1e6)
    jwt_secret: SecretStr | None = None
    allowed_hosts: Hosts = ()
    cors_origins: Origins = (LOCAL,)

    # A model split over several processes; see docs/pipeline.md.
    split: Annotated[
        tuple[int, ...] | Literal["auto"] | None, NoDecode, BeforeValidator(_layers)
    ] = None
    split_ranks: int = Field(MIN_RANKS, ge=MIN_RANKS, le=MAX_RANKS)
    split_timeout_s: float = Field(30.0, alias="SPLIT_TIMEOUT", ge=1, le=3600)

    # Bounds on the size and slowness of requests, and how bodies are read.
    max_content_length_bytes: int = Field(
        4 * 1024 * 1024, alias="MAX_CONTENT_LENGTH", ge=1024, le=1024**3
    )
    head_timeout_s: float = Field(5.0, alias="HEAD_TIMEOUT", gt=0, le=3600)
    body_timeout_s: float = Field(10.0, alias="BODY_TIMEOUT", gt=0, le=3600)
    min_body_bytes_per_s: int = Field(16 * 1024, alias="MIN_BODY_RATE", ge=1, le=1024**3)
    max_connections: int = Field(4096, ge=64, le=1_000_000)
    max_waiting_per_address: int = Field(256, ge=1, le=1_000_000)
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    images: Literal["ignore", "refuse"] = "ignore"

    log_level: LogLevel = "INFO"
    log_format: LogFormat = "text"
    vllm_metrics: bool = True
    otel_exporter_otlp_endpoint: str | None = Field(None, pattern="^https?://")
    otel_service_name: str = "hearth"
    cluster_url: str | None = Field(
        None, pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$", max_length=2048
    )

    @field_validator("models", mode="before")
    @classmethod
    def _complete_models(cls, value: object, info: ValidationInfo) -> object:
        """Use the variables as defaults for the fields that entries of MODELS do not set."""
        if value == ():
            return value
        entries = _json_list(value)
        single = {name: info.data[name] for name in ("model", "model_name") if name in info.data}
        if single != {"model": str(EMBEDDED_MODEL), "model_name": None}:
            raise ValueError("one of MODEL and MODEL_NAME is set too; give one model or a list")
        shared = {
            field: info.data[field]
            for field in ModelSettings.model_fields
            if field in info.data and field not in single
        }
        return tuple({**shared, **entry} if isinstance(entry, dict) else entry for entry in entries)

    @field_validator("models")
    @classmethod
    def _check_names(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        names = [each.name for each in models]
        if len(set(names)) < len(names):
            raise ValueError(f"two models have one name ({', '.join(names)}); set model_name")
        return models

    @field_validator("bundle", mode="before")
    @classmethod
    def _read_bundle(cls, value: object, info: ValidationInfo) -> object:
        if value is None:
            return None
        faults = [
            f"{field.upper()} is set too, and the file has a key for that; unset one of them."
            for field in REPLACED_BY_BUNDLE
            if info.data.get(field, cls.model_fields[field].default)
            != cls.model_fields[field].default
        ]
        try:
            bundle = value if isinstance(value, Bundle) else read_bundle(expanded(str(value)))
        except StartupError as error:
            faults += error.faults
        else:
            faults += bundle.row_faults(info.data.get("user_rows", 256))
            value = bundle
        if faults:
            raise PydanticCustomError("bundle", "cannot be served", {"faults": faults})
        return value

    @field_validator("max_batch")
    @classmethod
    def _check_batch(cls, max_batch: int, info: ValidationInfo) -> int:
        models = info.data.get("models") or ()
        rows = [each.user_rows for each in models] or [info.data.get("user_rows", max_batch)]
        if info.data.get("batching") == "dynamic" and max_batch > min(rows):
            raise ValueError(f"is above USER_ROWS={min(rows)}; lower it or raise USER_ROWS")
        return max_batch

    @field_validator("model_aliases", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            [name.strip() for name in value.split(",") if name.strip()]
            if isinstance(value, str)
            else value
        )

    @cached_property
    def served_models(self) -> tuple[ModelSettings, ...]:
        """The models served, the default first; at least one."""
        if self.bundle is None:
            return self.models or (self,)
        default = self.bundle.default_member
        other_members = [each for each in self.bundle.members if each is not default]
        return tuple(self.of_member(each) for each in (default, *other_members))

    def of_member(self, member: BundleMember) -> ModelSettings:
        """Returns the settings of a member of a bundle, of this server's or of another one."""
        draft = member.draft
        tokens = None if draft is None else draft.tokens
        return ModelSettings(
            model=member.source,
            model_name=member.name,
            device="cuda" if self.device == "cuda" else "cpu",
            dtype=self.dtype,
            quantization=member.quantisation,
            kv_cache_dtype=self.kv_cache_dtype,
            generation_config=self.generation_config,
            user_rows=member.rows.max or self.user_rows,
            max_seq_len=member.context,
            speculation=member.speculation or "off",
            speculation_tokens=tokens or self.speculation_tokens,
            medusa_heads=member.medusa_heads,
            draft_model=None if draft is None else draft.source,
        )

    def of_model(self, name: str) -> ModelSettings:
        """Returns the settings of a served model; for any other name, of the default one."""
        return next((each for each in self.served_models if each.name == name), self.default_model)

    @property
    def default_model(self) -> ModelSettings:
        return self.served_models[0]

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names and aliases of all models, without duplicates and without patterns. A model's own
        name has precedence over an equal alias."""
        aliases = (each for each in self.model_aliases if ANY not in each)
        return tuple(dict.fromkeys((*(each.name for each in self.served_models), *aliases)))

    def name_of(self, requested: str) -> str:
        """Returns the name of the model with this name or alias. Raises UnknownModel."""
        if any(requested == each.name for each in self.served_models):
            return requested
        if any(is_match(requested, alias) for alias in self.model_aliases):
            return self.default_model.name
        raise UnknownModel(requested, self.served_names)

    @property
    def has_router(self) -> bool:
        """Whether a router chooses the model for requests to `auto`."""
        return self.bundle is not None and self.bundle.router is not None

    def has_strict_bounds(self, model: str) -> bool:
        """Returns whether the native routes apply the reference's bounds to this name."""
        if self.strict_bounds == "aliases":
            return model in self.model_aliases and ANY not in model
        return self.strict_bounds == "always"

    @property
    def all_user_rows(self) -> int:
        """User rows of all models. Members of a bundle share rows; other models have their own."""
        if self.bundle is not None:
            return self.user_rows
        return sum(each.user_rows for each in self.served_models)

    @property
    def queue_capacity(self) -> int:
        """The most requests that may wait for all models together."""
        if self.bundle is not None:
            return self.bundle.max_queue
        return self.max_input_qsize * len(self.served_models)

    @property
    def threads(self) -> int:
        """The number of request threads: one per row and queued request, and CONTROL_THREADS."""
        return self.all_user_rows + self.queue_capacity + CONTROL_THREADS


def load_settings(**overrides: Any) -> Settings:
    """Read the environment. Fields in `overrides` take precedence over their variables. Raises
    StartupError naming every faulty variable at once."""
    return read_settings(Settings, StartupError, **overrides)


def _json_list(value: object) -> list[object] | tuple[object, ...]:
    """Returns the list in a JSON text. Raises ValueError if it is empty, or not a list."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is no JSON ({error})") from None
    if not isinstance(value, list | tuple) or not value:
        raise ValueError('is no list of models, as in [{"model": "/models/a"}]')
    return value


def is_match(name: str, pattern: str) -> bool:
    """Returns whether a name matches the pattern, in which `*` stands for any number of characters,
    and every other one for itself. fnmatch searches for each part once, so that no name takes
    long."""
    with_stars_alone = re.sub(r"[?[]", r"[\g<0>]", pattern)
    return len(name) <= MAX_NAME_CHARS and fnmatchcase(name, with_stars_alone)
