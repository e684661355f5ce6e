"""The parts of Deployments and Pods that concern replicas. Pure, immutable: any thread.

Labels of a Deployment and its pods name their server and accelerator. A name that is not valid in a
label (63 letters, digits, `-`, `_`, `.`) is in an annotation with the same key. USER_ROWS of the
first container gives the group's rows.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AliasPath, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from cluster.replicas import Group, Replica, ReplicaState

SERVER_LABEL = "hearth.dev/server"
ACCELERATOR_LABEL = "hearth.dev/accelerator"
SELECTOR = f"{SERVER_LABEL},{ACCELERATOR_LABEL}"
ROWS_VARIABLE = "USER_ROWS"
DEFAULT_ROWS = 32  # rows of a process without the variable
PORT_NAME = "http"
DEFAULT_PORT = 7000

MAX_REASON_CHARS = 500
MAX_LOG_CHARS = 400
# Reasons for which a container waits until someone acts.
STUCK = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)


T = TypeVar("T")
Some = Annotated[tuple[T, ...], BeforeValidator(lambda value: () if value is None else value)]
Names = Annotated[dict[str, str], BeforeValidator(lambda value: {} if value is None else value)]


def _at(*path: str, default: object = ...) -> Any:
    """Returns a field that is read from this path in the object."""
    return Field(default, validation_alias=AliasPath(*path))


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class Variable(_Part):
    name: str
    value: str | None = None


class ContainerPort(_Part):
    name: str | None = None
    container_port: int


class Container(_Part):
    name: str
    env: Some[Variable] = ()
    ports: Some[ContainerPort] = ()


class Reason(_Part):
    reason: str = ""
    message: str = ""


class Condition(Reason):
    type: str
    status: str


class _Workload(_Part):
    name: str = _at("metadata", "name", default="")
    labels: Names = _at("metadata", "labels", default={})
    annotations: Names = _at("metadata", "annotations", default={})
    conditions: Some[Condition] = _at("status", "conditions", default=())
    containers: tuple[Container, ...]

    @property
    def labelled(self) -> tuple[str | None, str | None]:
        """Returns the server and the accelerator."""
        server, accelerator = (
            self.annotations.get(key) or self.labels.get(key)
            for key in (SERVER_LABEL, ACCELERATOR_LABEL)
        )
        return server, accelerator

    @property
    def user_rows(self) -> int:
        values = {each.name: each.value for each in self.containers[0].env}
        found = values.get(ROWS_VARIABLE) or ""
        # With an invalid value the process does not start, so any number may be returned.
        return int(found) if found.isdecimal() and len(found) < 9 else DEFAULT_ROWS

    @property
    def port(self) -> int:
        ports = {each.name: each.container_port for each in self.containers[0].ports}
        only = next(iter(ports.values())) if len(ports) == 1 else DEFAULT_PORT
        return ports.get(PORT_NAME, only)


class Deployment(_Workload):
    resource_version: str = _at("metadata", "resourceVersion", default="")
    replicas: int = _at("spec", "replicas", default=1)
    containers: Annotated[tuple[Container, ...], Field(min_length=1)] = _at(
        "spec", "template", "spec", "containers"
    )

    @property
    def why_no_pods(self) -> str:
        """Returns why pods cannot be created, such as a quota; empty if they can."""
        return next(
            (each.message for each in self.conditions
             if each.type == "ReplicaFailure" and each.status == "True"), ""
        )[:MAX_REASON_CHARS]  # fmt: skip


class ContainerStatus(_Part):
    waiting: Reason | None = _at("state", "waiting", default=None)
    ended: Reason | None = _at("lastState", "terminated", default=None)

    @property
    def why_stuck(self) -> str:
        """Returns why a container cannot run, with its log's end; empty if it may run."""
        waiting, ended = self.waiting, self.ended
        if waiting is None or waiting.reason not in STUCK:
            return ""
        message = ended.message if ended and ended.message else waiting.message
        return f"{waiting.reason}: {message.strip()[-MAX_LOG_CHARS:]}"


class Pod(_Workload):
    created_at: AwareDatetime | None = _at("metadata", "creationTimestamp", default=None)
    deleted_at: AwareDatetime | None = _at("metadata", "deletionTimestamp", default=None)
    containers: Annotated[tuple[Container, ...], Field(min_length=1)] = _at("spec", "containers")
    phase: str = _at("status", "phase", default="")
    ip: str | None = _at("status", "podIP", default=None)
    container_statuses: Some[ContainerStatus] = _at("status", "containerStatuses", default=())

    @property
    def group(self) -> Group | None:
        """Returns the pod's group; None without labels, or for the record of an ended pod."""
        server, accelerator = self.labelled
        if not server or not accelerator or self.phase in ("Succeeded", "Failed"):
            return None
        return Group(server, accelerator, self.user_rows)

    @property
    def why_unplaced(self) -> str:
        """Returns why the pod has no node; empty if it has one or is being deleted."""
        scheduled = self._condition("PodScheduled")
        if scheduled is None or scheduled.status == "True" or self.deleted_at:
            return ""
        return f"not placed: {scheduled.message or scheduled.reason}"[:MAX_REASON_CHARS]

    def age_s(self, now: datetime) -> float:
        return (now - (self.created_at or now)).total_seconds()

    def replica(self, group: Group) -> Replica:
        state, why = self._state()
        host = f"[{self.ip}]" if self.ip and ":" in self.ip else self.ip
        url = f"http://{host}:{self.port}" if host else None
        return Replica(self.name, group, state, url, why[:MAX_REASON_CHARS])

    def _state(self) -> tuple[ReplicaState, str]:
        if self.deleted_at is not None:
            return ReplicaState.DRAINING, ""
        ready = self._condition("Ready")
        if ready is not None and ready.status == "True":
            return ReplicaState.READY, ""
        for each in self.container_statuses:
            if why := each.why_stuck:
                return ReplicaState.FAILED, why
        return ReplicaState.STARTING, self.why_unplaced

    def _condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)


class Autoscaler(_Part):
    name: str = _at("metadata", "name", default="")
    kind: str = _at("spec", "scaleTargetRef", "kind")
    target: str = _at("spec", "scaleTargetRef", "name")


class KindList(_Part, Generic[T]):
    items: Some[T] = ()
