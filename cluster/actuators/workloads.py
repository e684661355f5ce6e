"""The parts of Deployments and Pods that concern replicas. Pure, immutable: any thread.

Labels of a Deployment and its pods name their server and accelerator. If a name is not valid in a
label (63 letters, digits, `-`, `_`, `.`), an annotation with the same key has it. The rows of the
group are USER_ROWS of the first container.
"""

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from cluster.replicas import Group, Replica, ReplicaState

SERVER_LABEL = "hearth.dev/server"
ACCELERATOR_LABEL = "hearth.dev/accelerator"
SELECTOR = f"{SERVER_LABEL},{ACCELERATOR_LABEL}"
ROWS_VARIABLE = "USER_ROWS"
DEFAULT_ROWS = 32  # rows of a process without the variable
PORT_NAME = "http"
DEFAULT_PORT = 7000

MAX_WHY = 500
MAX_SAID = 400
# Reasons for which a container waits in vain, until someone acts.
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


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


def _none_is_empty(value: object) -> object:
    return () if value is None else value


class WorkloadMetadata(_Part):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: AwareDatetime | None = None
    deletion_timestamp: AwareDatetime | None = None

    def name_by(self, key: str) -> str | None:
        return (self.annotations or {}).get(key) or (self.labels or {}).get(key)


class Variable(_Part):
    name: str
    value: str | None = None


class ContainerPort(_Part):
    name: str | None = None
    container_port: int


class Container(_Part):
    name: str
    env: Annotated[tuple[Variable, ...], BeforeValidator(_none_is_empty)] = ()
    ports: Annotated[tuple[ContainerPort, ...], BeforeValidator(_none_is_empty)] = ()


class PodSpec(_Part):
    containers: tuple[Container, ...] = Field(min_length=1)

    @property
    def user_rows(self) -> int:
        values = {each.name: each.value for each in self.containers[0].env}
        found = values.get(ROWS_VARIABLE) or ""
        # With a wrong value the process does not start, so any number may be returned.
        return int(found) if found.isdecimal() and len(found) < 9 else DEFAULT_ROWS

    @property
    def port(self) -> int:
        ports = {each.name: each.container_port for each in self.containers[0].ports}
        only = next(iter(ports.values())) if len(ports) == 1 else DEFAULT_PORT
        return ports.get(PORT_NAME, only)


class Condition(_Part):
    type: str
    status: str
    reason: str = ""
    message: str = ""


Conditions = Annotated[tuple[Condition, ...], BeforeValidator(_none_is_empty)]


class Template(_Part):
    spec: PodSpec


class DeploymentSpec(_Part):
    replicas: int = 1
    template: Template


class DeploymentStatus(_Part):
    conditions: Conditions = ()


class _Workload(_Part):
    metadata: WorkloadMetadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def labelled(self) -> tuple[str | None, str | None]:
        """Returns the server and the accelerator."""
        return self.metadata.name_by(SERVER_LABEL), self.metadata.name_by(ACCELERATOR_LABEL)


class Deployment(_Workload):
    spec: DeploymentSpec
    status: DeploymentStatus = DeploymentStatus()

    @property
    def user_rows(self) -> int:
        return self.spec.template.spec.user_rows

    def is_of(self, group: Group) -> bool:
        return self.labelled == (group.server, group.accelerator)

    @property
    def why_no_pods(self) -> str:
        """Returns why pods cannot be created, such as a quota; empty if they can."""
        return next(
            (each.message for each in self.status.conditions
             if each.type == "ReplicaFailure" and each.status == "True"), ""
        )[:MAX_WHY]  # fmt: skip


class Reason(_Part):
    reason: str = ""
    message: str = ""


class ContainerState(_Part):
    waiting: Reason | None = None
    terminated: Reason | None = None


class ContainerStatus(_Part):
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()

    @property
    def why_stuck(self) -> str:
        """Returns why a container cannot run, with its log's end; empty if it runs or may run."""
        waiting, ended = self.state.waiting, self.last_state.terminated
        if waiting is None or waiting.reason not in STUCK:
            return ""
        said = ended.message if ended and ended.message else waiting.message
        return f"{waiting.reason}: {said.strip()[-MAX_SAID:]}"


class PodStatus(_Part):
    phase: str = ""
    pod_ip: str | None = Field(default=None, alias="podIP")
    conditions: Conditions = ()
    container_statuses: Annotated[
        tuple[ContainerStatus, ...], BeforeValidator(_none_is_empty)
    ] = ()  # fmt: skip

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)


class Pod(_Workload):
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def group(self) -> Group | None:
        """Returns the replica; None if the pod is only the record of an evicted one."""
        server, accelerator = self.labelled
        if not server or not accelerator or self.status.phase in ("Succeeded", "Failed"):
            return None
        return Group(server, accelerator, self.spec.user_rows)

    @property
    def why_unplaced(self) -> str:
        """Returns why the pod has no node; empty if it has one or is being deleted."""
        scheduled = self.status.condition("PodScheduled")
        if scheduled is None or scheduled.status == "True" or self.metadata.deletion_timestamp:
            return ""
        return f"not placed: {scheduled.message or scheduled.reason}"[:MAX_WHY]

    def age_s(self, now: datetime) -> float:
        return (now - (self.metadata.creation_timestamp or now)).total_seconds()

    def replica(self, group: Group) -> Replica:
        state, why = self._state()
        return Replica(self.name, group, state, self._url(), why[:MAX_WHY])

    def _state(self) -> tuple[ReplicaState, str]:
        if self.metadata.deletion_timestamp is not None:
            return ReplicaState.DRAINING, ""
        ready = self.status.condition("Ready")
        if ready is not None and ready.status == "True":
            return ReplicaState.READY, ""
        for each in self.status.container_statuses:
            if why := each.why_stuck:
                return ReplicaState.FAILED, why
        return ReplicaState.STARTING, self.why_unplaced

    def _url(self) -> str | None:
        ip = self.status.pod_ip
        if not ip:
            return None
        return f"http://[{ip}]:{self.spec.port}" if ":" in ip else f"http://{ip}:{self.spec.port}"


class DeploymentList(_Part):
    items: Annotated[tuple[Deployment, ...], BeforeValidator(_none_is_empty)] = ()


class PodList(_Part):
    items: Annotated[tuple[Pod, ...], BeforeValidator(_none_is_empty)] = ()


class ScaleTargetRef(_Part):
    kind: str
    name: str


class AutoscalerSpec(_Part):
    scale_target_ref: ScaleTargetRef


class Autoscaler(_Part):
    metadata: WorkloadMetadata
    spec: AutoscalerSpec


class AutoscalerList(_Part):
    items: Annotated[tuple[Autoscaler, ...], BeforeValidator(_none_is_empty)] = ()
