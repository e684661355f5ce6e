"""`ClusterConfig`: the cluster's file, read once at start. Immutable: any thread.

`docs/controller.md` explains each key; a test compares the two.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from cluster.engines import Engine
from cluster.errors import ConfigFaulty
from cluster.replicas import Recipes
from cluster.server_keys import Name, Seconds, ServerKeys
from cluster.system import SystemDocument, read_system
from common.addresses import BaseUrl, HostName
from common.faults import capped, shown
from common.files import read_bounded
from common.key_files import Keys, KeysFaulty, float_of, parse_keys
from common.paths import UserPath

MAX_FILE_BYTES = 2**20
MAX_KEYS = 2**18  # keys and values in the file
MAX_SERVERS = 1000
MAX_SYSTEM_BYTES = 2**26


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
    servers: dict[Name, ServerKeys] = Field(max_length=MAX_SERVERS)
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

    @field_validator("servers")
    @classmethod
    def _check_number(cls, servers: dict[str, ServerKeys]) -> dict[str, ServerKeys]:
        if not servers:
            raise ValueError("has no entries; name the servers of the system")
        return servers

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
