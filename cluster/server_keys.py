"""`ServerKeys`: the part of the cluster's file that says how a server's replicas are run."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from cluster.engines import ENGINES, NEEDED, PLACES, Engine, MetricNames
from common.faults import shown
from common.key_files import Keys, float_of

_PLACE = re.compile(r"\{([a-z_]+)\}")


def _text_of(value: object) -> object:
    """Converts numbers and booleans, as which YAML reads some settings, to strings."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} is no command line ({error}); close the quotes") from None
    if not words:
        raise ValueError(f"{shown(text)} has no words; give the engine's command line")
    if unknown := {place for word in words for place in _PLACE.findall(word)} - {*PLACES}:
        known = ", ".join(PLACES)
        raise ValueError(f"{shown(text)} has the place {{{min(unknown)}}}; known: {known}")
    return text


def _path_or_id(model: str, info: ValidationInfo) -> str:
    """Resolves a path that exists in the file's folder, which is the validation's context. Returns
    any other model unchanged, because it may be a hub id."""
    path = Path(info.context or "", model)
    try:
        return str(path.resolve()) if model and info.context and path.exists() else model
    except (OSError, ValueError):  # for example, a hub id that is too long for a file name
        return model


Name = Annotated[str, Field(min_length=1, max_length=500)]
Seconds = Annotated[float, BeforeValidator(float_of), Field(allow_inf_nan=False)]
Setting = Annotated[str, BeforeValidator(_text_of), Field(max_length=4096)]
CommandLine = Annotated[str, Field(max_length=16_384), AfterValidator(_command)]
HttpPath = Annotated[str, Field(max_length=1024, pattern=r"^/[!-~]*$")]
EngineName = Literal["hearth", "vllm", "sglang", "llama-server", "command"]
MetricField = Literal[
    "ended", "prompt_tokens", "completion_tokens", "ttft_s", "ttft_count", "itl_s", "itl_count",
    "running", "waiting",
]  # fmt: skip


class ServerKeys(Keys):
    """How the replicas of one of the system's servers are run."""

    engine: EngineName = "hearth"
    model: Annotated[str, Field(max_length=4096), AfterValidator(_path_or_id)] | None = None
    settings: dict[Name, Setting] = Field(default_factory=dict, max_length=200)
    models: list[Name] = Field(default_factory=list, max_length=100)
    idle_s: Seconds | None = Field(None, ge=1, le=604_800)
    command: CommandLine | None = None
    ready_path: HttpPath | None = None
    metrics: dict[MetricField, Name] = Field(default_factory=dict)

    @property
    def replica_settings(self) -> dict[str, str]:
        """Returns the settings that each replica starts with, which include `model`."""
        return ({} if self.model is None else {"MODEL": self.model}) | self.settings

    def engine_for(self, answer_tokens: float) -> Engine:
        """Returns the server's engine. `answer_tokens` is the mean answer in the system's load."""
        found = ENGINES[self.engine]
        metrics: MetricNames = {field: (name,) for field, name in self.metrics.items()}
        return replace(
            found,
            metrics={**found.metrics, **metrics},
            command=tuple(shlex.split(self.command)) if self.command else found.command,
            ready_path=self.ready_path or found.ready_path,
            answer_tokens=max(answer_tokens, 1.0),
        )

    def faults(self, answer_tokens: float, *, has_command: bool) -> Iterator[str]:
        """Yields faults of keys together. `has_command` says whether the actuator runs commands."""
        if self.engine == "hearth":
            for key in sorted({"command", "ready_path", "metrics"} & self.model_fields_set):
                yield f"{key}: is for other engines; remove it or name the engine."
            return
        engine = self.engine_for(answer_tokens)
        if has_command and not engine.command:
            yield "command: is missing; give the engine's command line."
        if has_command and self.model is None and any("{model}" in word for word in engine.command):
            yield f"model: is missing; the command line of {self.engine} needs it."
        if lacking := [field for field in NEEDED if field not in engine.metrics]:
            yield f"metrics: has no {', '.join(lacking)}; name the samples of its /metrics."
        if "ended" not in engine.metrics and answer_tokens < 1:
            yield (
                f"engine: {self.engine} counts no requests, and the load of the server in the "
                f"system has avgOutTokens {answer_tokens:g}; give 1 or more."
            )
