"""`ClusterConfig`: the cluster's file, read once at start. `ServerKeys` is the part that says how a
server's replicas are run. Immutable: any thread.

`docs/controller.md` explains each key; a test compares the two.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from cluster.engines import ENGINES, NEEDED, PLACES, Engine, MetricNames
from cluster.errors import ConfigFaulty
from cluster.replicas import Recipes
from cluster.system import SystemDocument, read_system
from common.addresses import BaseUrl, HostName
from common.faults import capped, shown
from common.files import read_bounded
from common.paths import UserPath
from common.plain_yaml import Keys, KeysFaulty, float_of, parse_keys

MAX_FILE_BYTES = 2**20
MAX_KEYS = 2**18  # keys and values in the file
MAX_SERVERS = 1000
MAX_SYSTEM_BYTES = 2**26
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


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{shown(text)} is not HOST:PORT; give for example 127.0.0.1:3300")
    return text


def _in_folder(path: Path, info: ValidationInfo) -> Path:
    """Resolves a path in the folder of the cluster's file, which is the validation's context."""
    return path if info.context is None else Path(info.context, path)


_READ_EMPTY: Any = Field(default_factory=dict, validate_default=True)
Url = Annotated[BaseUrl, Field(max_length=2048)]
Address = Annotated[str, Field(max_length=300), AfterValidator(_address)]
FilePath = Annotated[UserPath, AfterValidator(_in_folder), Field(strict=False)]
Amount = Annotated[float, BeforeValidator(float_of), Field(ge=0, le=1e6, allow_inf_nan=False)]


class ActuatorKeys(Keys):
    """How replicas are started and stopped."""

    kind: Literal["local", "ray", "kubernetes"] = "local"
    address: str = Field("auto", max_length=300)
    namespace: str = Field("hearth", min_length=1, max_length=63)
    folder: FilePath = Field(Path("var/replicas"), validate_default=True)
    capacity: dict[Name, Amount] = Field(default_factory=dict, max_length=50)
    pins: bool = False
    leave_s: Seconds = Field(10.0, ge=0, le=3600)


class ProxyKeys(Keys):
    """The proxy. Requests that wait there have arrived, but no replica counts them."""

    url: Url
    token_file: FilePath | None = None


class AcceleratorKeys(Keys):
    """The resources of one replica on this accelerator."""

    resources: dict[Name, Amount] = Field(default_factory=dict, max_length=50)


class ClusterConfig(Keys):
    """A valid file. Paths in it are relative to its folder."""

    system: FilePath
    optimizer: Url
    servers: dict[Name, ServerKeys] = Field(min_length=1, max_length=MAX_SERVERS)
    accelerators: dict[Name, AcceleratorKeys] = Field(max_length=200)
    listen: Address = "127.0.0.1:3300"
    allowed_hosts: list[HostName] = Field(default_factory=list, max_length=100)
    period_s: Seconds = Field(60.0, ge=0, le=86_400)
    rollout_s: Seconds = Field(2.0, ge=0.1, le=60)
    stabilization_s: Seconds = Field(60.0, ge=0, le=86_400)
    scale_down_s: Seconds = Field(300.0, ge=0, le=86_400)
    actuator: ActuatorKeys = _READ_EMPTY
    upstreams_file: FilePath = Field(Path("var/upstreams.yaml"), validate_default=True)
    proxy: ProxyKeys | None = None
    journal: FilePath = Field(Path("var/cluster.jsonl"), validate_default=True)
    journal_bytes: int = Field(64 * 2**20, ge=2**16, le=2**40)
    tune: bool = True
    dry_run: bool = False

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    def idle_s(self, system: SystemDocument) -> dict[str, float]:
        """Returns how long each server that may scale to 0 must be idle before it does."""
        return {
            name: each.idle_s or max(self.scale_down_s, 1.0)
            for name, each in self.servers.items()
            if system.may_sleep(name)
        }

    def models_of_sleepers(self, system: SystemDocument) -> dict[str, list[str]]:
        """Returns, for each server that may scale to 0, the models whose requests wake it; empty
        means any model. Of several servers, those without models are left out: none wakes them."""
        return {
            name: each.models
            for name, each in self.servers.items()
            if system.may_sleep(name) and (each.models or len(self.servers) == 1)
        }

    def engines(self, system: SystemDocument) -> dict[str, Engine]:
        """Returns the engines of servers that do not run Hearth, by server."""
        return {
            name: each.engine_for(system.answer_tokens(name))
            for name, each in self.servers.items()
            if each.engine != "hearth"
        }

    def recipes(self, system: SystemDocument) -> Recipes:
        """Returns how the replicas of each server are run, and their resources."""
        settings = {name: each.replica_settings for name, each in self.servers.items()}
        resources = {name: each.resources for name, each in self.accelerators.items()}
        models = {name: tuple(each.models) for name, each in self.servers.items() if each.models}
        costs = {
            (server, accelerator): system.cents_per_hour(server, accelerator)
            for server in self.servers
            for accelerator in self.accelerators
        }
        return Recipes(settings, resources, self.engines(system), models, costs)


def read_config(path: Path) -> tuple[ClusterConfig, SystemDocument]:
    """Reads a cluster's file and the system that it names. Raises ConfigFaulty with every fault."""
    content, folder = _bytes_of(path, MAX_FILE_BYTES), path.resolve().parent
    try:
        config = parse_keys(content, ClusterConfig, max_nodes=MAX_KEYS, context=folder)
    except KeysFaulty as error:
        _refuse(error.faults)
    system = read_system(_bytes_of(config.system, MAX_SYSTEM_BYTES))
    name = config.system.name
    faults: list[str] = []
    for key, kind, configured, known, remedy in (
        ("servers", "a server", config.servers, system.servers, "say how it is run"),
        ("accelerators", "an accelerator", config.accelerators, system.accelerators,
            "say what a replica takes there"),
    ):  # fmt: skip
        unknown = [shown(each) for each in configured if each not in known]
        missing = [shown(each) for each in known if each not in configured]
        listed = ", ".join(map(shown, list(known)[:20]))
        faults += [f"{key}: {each} is not {kind} of {name}; known: {listed}." for each in unknown]
        faults += [f"{key}: {each} of {name} is missing; {remedy}." for each in missing]
    for server, keys in config.servers.items():
        if server in system.servers:
            tokens = system.answer_tokens(server)
            has_command = config.actuator.kind != "kubernetes"
            found = [*keys.faults(tokens, has_command=has_command)]
            if keys.idle_s is not None and not system.may_sleep(server):
                found.append(f"idle_s: minNumReplicas in {name} is not 0; make it 0.")
            if keys.idle_s is not None and not keys.models and len(config.servers) > 1:
                found.append("models: is missing; name those in requests, which are to wake it.")
            faults += [f"servers.{server}.{fault}" for fault in found]
    if faults:
        _refuse(capped(faults))
    return config, system


def _refuse(faults: list[str]) -> NoReturn:
    raise ConfigFaulty("\n".join(f"  - {fault}" for fault in faults))


def _bytes_of(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            _refuse([f"{path} is not a file; correct the path."])
        return read_bounded(path, max_bytes)
    except (OSError, ValueError) as error:  # a NUL in the path
        _refuse([f"{path} cannot be read ({error}); correct it."])
