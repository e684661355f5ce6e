"""Runs replicas as processes of this machine, which outlive the controller.

Each replica has a file and a log in a folder, where a restarted controller finds it. All replicas
share a fixed amount of resources. A replica has its GPUs, and on request its cores, to itself.
"""

import fcntl
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from cluster.actuators import Placed
from cluster.actuators.api_process import (
    DEVICES,
    ApiProcess,
    devices_of,
    last_words,
    pinned_to,
    start_api,
)
from cluster.errors import ActuatorUnusable
from cluster.replicas import Group, Recipe
from common.connections.sockets import free_port
from common.files import write_whole

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_PID = 2**22  # Linux's limit: proc(5)

T = TypeVar("T")


class ReplicaRecord(BaseModel):
    """The content of a replica's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9-]{1,63}$")
    server: str
    accelerator: str
    user_rows: int
    resources: Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    cores: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    port: int = Field(ge=1, le=65535)
    pid: int = Field(ge=2, le=MAX_PID)
    started: str = Field(min_length=1)
    is_leaving: bool = False

    @property
    def process(self) -> ApiProcess:
        return ApiProcess(self.pid, self.started)

    @property
    def group(self) -> Group:
        return Group(self.server, self.accelerator, self.user_rows)


class LocalMachine:
    """`Machines` on this machine. One thread at a time, and one controller per folder."""

    def __init__(
        self, folder: Path, capacity: Mapping[str, float] | None = None, *, pins: bool = False
    ) -> None:
        """`capacity` is the resources of all replicas together, by default the cores that this
        process may use. `pins` gives a replica with a whole number of CPUs its own cores. Raises
        ActuatorUnusable if the folder cannot be used or another controller uses it."""
        self._folder = folder
        self._cores = tuple(sorted(os.sched_getaffinity(0)))
        self._capacity = dict(capacity or {"CPU": len(self._cores)})
        self._pins = pins
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._records = {each.name: each for each in records_in(folder)}
        except BlockingIOError as error:
            os.close(self._lock)
            raise ActuatorUnusable(f"Another controller uses {folder}; stop it.") from error
        except OSError as error:
            raise ActuatorUnusable(f"{folder} cannot be used: {error}.") from error
        for record in list(self._records.values()):
            if not record.process.is_running():
                log.warning("%s ended while no controller was running", record.name)
                self.remove(record.name)

    def placed(self) -> Sequence[Placed]:
        return [self._placed(record) for record in self._records.values()]

    def place(self, name: str, group: Group, recipe: Recipe) -> str | None:
        if name in self._records:
            return None
        lacking = self._lacking(recipe.resources)
        if lacking:
            return lacking
        records, port = self._records.values(), self._new_port()
        taken_cores = {core for record in records for core in record.cores}
        cores = _own(self._cores if self._pins else (), taken_cores, recipe.resources.get("CPU", 0))
        taken_devices = {device for record in records for device in record.devices}
        all_devices = devices_of(int(self._capacity.get("GPU", 0.0)))
        devices = _own(all_devices, taken_devices, recipe.resources.get("GPU", 0))
        visible = {DEVICES: ",".join(devices)} if devices else {}
        process = start_api(
            (HOST, port),
            {**visible, **recipe.settings},
            self._log_path(name),
            *pinned_to(cores),
            command=recipe.engine.command,
        )
        record = ReplicaRecord(
            name=name,
            server=group.server,
            accelerator=group.accelerator,
            user_rows=group.user_rows,
            resources=recipe.resources,
            cores=cores,
            devices=devices,
            port=port,
            pid=process.pid,
            started=process.started,
        )
        try:
            self._keep(record)
        except OSError as error:
            self._records[name] = record
            self.remove(name)  # nobody would find its process again
            raise ActuatorUnusable(f"{self._folder} cannot be written: {error}.") from error
        return None

    def mark_leaving(self, name: str) -> None:
        if name in self._records:
            self._keep(self._records[name].model_copy(update={"is_leaving": True}))

    def terminate(self, name: str) -> None:
        if name in self._records:
            self._records[name].process.terminate()

    def remove(self, name: str) -> None:
        if name in self._records:
            self._records[name].process.kill()
            del self._records[name]
            for path in self._folder.glob(f"{name}.*"):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._lock)

    def _placed(self, record: ReplicaRecord) -> Placed:
        ended = None if record.process.is_running() else last_words(self._log_path(record.name))
        url = f"http://{HOST}:{record.port}"
        return Placed(record.name, record.group, url, record.is_leaving, ended)

    def _lacking(self, wanted: Mapping[str, float]) -> str | None:
        """Returns a message about missing resources; None if there are enough."""
        taken = [record.resources for record in self._records.values()]
        faults = []
        for name, amount in wanted.items():
            capacity = self._capacity.get(name, 0.0)
            free = capacity - sum(each.get(name, 0.0) for each in taken)
            if amount > free + 1e-9:
                faults.append(f"{name}: need {amount:g}, {max(0.0, free):g} of {capacity:g} free")
        return "; ".join(faults) or None

    def _new_port(self) -> int:
        """Returns a free port that no replica has. New replicas may not listen on theirs yet."""
        taken = {record.port for record in self._records.values()}
        while (port := free_port(HOST)) in taken:
            continue
        return port

    def _keep(self, record: ReplicaRecord) -> None:
        write_whole(self._path(record.name), record.model_dump_json())
        self._records[record.name] = record

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _log_path(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _own(all_: Iterable[T], taken: Collection[T], count: float) -> tuple[T, ...]:
    """Returns the cores or GPUs that a replica has to itself; empty if it shares one."""
    free = [each for each in all_ if each not in taken]
    return tuple(free[: int(count)]) if count == int(count) else ()


def records_in(folder: Path) -> list[ReplicaRecord]:
    """Returns the replicas recorded in a folder. Any process may call this."""
    return [each for each in map(_read, folder.glob("*.json")) if each]


def _read(path: Path) -> ReplicaRecord | None:
    """Returns a record; None if the file is gone or invalid. Logs an invalid file and keeps it."""
    try:
        record = ReplicaRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s is not a record of a replica: %.300s", path, error)
        return None
    if record.name != path.stem:
        log.warning("%s is the record of %s; it is left alone", path, record.name)
        return None
    return record
