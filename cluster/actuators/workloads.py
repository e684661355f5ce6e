"""The parts of Deployments and Pods that concern replicas. Pure: any thread.

Labels of a Deployment and its pods name their server and accelerator. A name that is not valid in a
label (63 letters, digits, `-`, `_`, `.`) is in an annotation with the same key. USER_ROWS of the
first container gives the group's rows.
"""

from collections.abc import Sequence
from datetime import datetime

from kubernetes.client import V1Container, V1ContainerStatus, V1Deployment, V1Pod, V1PodCondition

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


class _Workload:
    """A Deployment or a Pod. `container` is the first of its pods."""

    def __init__(self, item: V1Deployment | V1Pod, containers: Sequence[V1Container]) -> None:
        self.item = item
        self.name = str(item.metadata.name)
        self.container = containers[0]

    @property
    def labelled(self) -> tuple[str | None, str | None]:
        """Returns the server and the accelerator."""
        named = {**(self.item.metadata.labels or {}), **(self.item.metadata.annotations or {})}
        return named.get(SERVER_LABEL), named.get(ACCELERATOR_LABEL)

    @property
    def user_rows(self) -> int:
        values = {each.name: each.value for each in self.container.env or ()}
        found = values.get(ROWS_VARIABLE) or ""
        # With an invalid value the process does not start, so any number may be returned.
        return int(found) if found.isdecimal() and len(found) < 9 else DEFAULT_ROWS

    @property
    def port(self) -> int:
        ports = {each.name: int(each.container_port) for each in self.container.ports or ()}
        only = next(iter(ports.values())) if len(ports) == 1 else DEFAULT_PORT
        return ports.get(PORT_NAME, only)

    def _condition(self, kind: str) -> V1PodCondition | None:
        return next((each for each in self.item.status.conditions or () if each.type == kind), None)


class Deployment(_Workload):
    def __init__(self, item: V1Deployment) -> None:
        super().__init__(item, item.spec.template.spec.containers)
        self.replicas = 1 if item.spec.replicas is None else int(item.spec.replicas)

    @property
    def why_no_pods(self) -> str:
        """Returns why pods cannot be created, such as a quota; empty if they can."""
        failure = self._condition("ReplicaFailure")
        if failure is None or failure.status != "True":
            return ""
        return str(failure.message or "")[:MAX_REASON_CHARS]


class Pod(_Workload):
    def __init__(self, item: V1Pod) -> None:
        super().__init__(item, item.spec.containers)
        self.is_deleted = item.metadata.deletion_timestamp is not None

    @property
    def group(self) -> Group | None:
        """Returns the pod's group; None without labels, or for the record of an ended pod."""
        server, accelerator = self.labelled
        if not server or not accelerator or self.item.status.phase in ("Succeeded", "Failed"):
            return None
        return Group(server, accelerator, self.user_rows)

    @property
    def why_unplaced(self) -> str:
        """Returns why the pod has no node; empty if it has one or is being deleted."""
        scheduled = self._condition("PodScheduled")
        if scheduled is None or scheduled.status == "True" or self.is_deleted:
            return ""
        return f"not placed: {scheduled.message or scheduled.reason or ''}"[:MAX_REASON_CHARS]

    def age_s(self, now: datetime) -> float:
        created_at: datetime = self.item.metadata.creation_timestamp or now
        return (now - created_at).total_seconds()

    def replica(self, group: Group) -> Replica:
        state, why = self._state()
        ip = self.item.status.pod_ip
        host = f"[{ip}]" if ip and ":" in ip else ip
        url = f"http://{host}:{self.port}" if host else None
        return Replica(self.name, group, state, url, why[:MAX_REASON_CHARS])

    def _state(self) -> tuple[ReplicaState, str]:
        if self.is_deleted:
            return ReplicaState.DRAINING, ""
        ready = self._condition("Ready")
        if ready is not None and ready.status == "True":
            return ReplicaState.READY, ""
        for each in self.item.status.container_statuses or ():
            if why := _why_stuck(each):
                return ReplicaState.FAILED, why
        return ReplicaState.STARTING, self.why_unplaced


def _why_stuck(container: V1ContainerStatus) -> str:
    """Returns why a container cannot run, with its log's end; empty if it may run."""
    waiting = container.state and container.state.waiting
    if not waiting or waiting.reason not in STUCK:
        return ""
    ended = container.last_state and container.last_state.terminated
    message = (ended and ended.message) or waiting.message or ""
    return f"{waiting.reason}: {message.strip()[-MAX_LOG_CHARS:]}"
