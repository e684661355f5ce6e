"""Reads `config.yaml`: everything about a run that does not belong to one row. Immutable."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from benchmarking.errors import InvalidConfig
from benchmarking.load.tokenizers import SERVER
from benchmarking.records import MAX_SEED
from benchmarking.settings import checked_base
from common.faults import fault_of
from common.files import read_bounded
from common.paths import UserPath
from common.plain_yaml import plain_value

RESERVED = {"model", "messages", "text", "max_tokens", "stream", "stream_options"}
MAX_BYTES = 2**20
MAX_SECONDS = 30 * 86_400.0


def _supported_api(name: object) -> object:
    if name == "sambastudio":
        raise ValueError("SambaStudio's own shapes are not included; use its OpenAI routes")
    return name


ApiBase = Annotated[str, AfterValidator(checked_base)] | None
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]


class RowOptions(BaseModel):
    """Options of all rows of a run. Times are in s; after `timeout` a row sends nothing new.
    `warmup_requests` of None means a number that suits the row."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    timeout: Seconds = 600.0
    use_multiple_prompts: bool = False
    tokenizer: str = SERVER
    seed: int = Field(0, ge=0, le=MAX_SEED)
    unique_prefix: bool = True
    warmup_requests: int | None = Field(None, ge=0, le=100_000)
    request_timeout: Seconds = 600.0


class BenchmarkConfig(RowOptions):
    """The documented keys, then Hearth's. Relative paths start at the working directory."""

    model_configs_path: UserPath
    llm_api: Annotated[Literal["sncloud", "openai", "hearth"], BeforeValidator(_supported_api)] = (
        "sncloud"
    )
    output_files_dir: UserPath = Path("..")
    consolidated_results_dir: UserPath | None = None
    time_delay: Seconds = 0.0
    concurrency_enabled: bool = False
    max_workers: int = Field(4, ge=1, le=64)
    show_results_in_terminal: bool = False
    api_base: ApiBase = None
    sampling_params: dict[str, Any] = {}
    save_response_texts: bool = False
    run_name: str | None = Field(None, pattern=r"^[\w.-]+$")
    consolidated_name: str = Field("{run_name}", pattern=r"^[^/\\]+$")

    @field_validator("consolidated_results_dir", mode="before")
    @classmethod
    def _empty_is_none(cls, path: object) -> object:
        return path or None

    @field_validator("sampling_params")
    @classmethod
    def _check_sampling(cls, params: dict[str, Any]) -> dict[str, Any]:
        if reserved := sorted(RESERVED.intersection(params)):
            raise ValueError(f"{', '.join(reserved)} belongs to the benchmark; leave it out")
        try:
            json.dumps(params, allow_nan=False)
        except ValueError:
            raise ValueError("NaN and infinity cannot be sent; give numbers") from None
        return params

    @field_validator("consolidated_name")
    @classmethod
    def _check_template(cls, template: str) -> str:
        if set(re.sub(r"\{(run_name|date)\}", "", template)) & {"{", "}"}:
            raise ValueError("only {run_name} and {date} can be filled in")
        return template


def read_config(path: Path, run_name: str | None = None) -> BenchmarkConfig:
    """Returns a file's configuration. `run_name` replaces the name in it. Raises InvalidConfig."""
    try:
        content = plain_value(read_bounded(path, MAX_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InvalidConfig(path, [str(error)]) from error
    if not isinstance(content, dict):
        raise InvalidConfig(path, ["is no list of keys and values"])
    content |= {"run_name": run_name} if run_name else {}
    try:
        return BenchmarkConfig.model_validate(content)
    except ValidationError as error:
        faults = [fault_of(each, BenchmarkConfig) for each in error.errors()]
        raise InvalidConfig(path, faults) from None
