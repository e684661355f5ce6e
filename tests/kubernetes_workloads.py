"""What a cluster's controllers, scheduler and kubelets make of Deployments, in a small API server.

Nothing happens by itself: `settle` lets time pass until the next thing that would.
"""

import json
import threading
from datetime import UTC, datetime
from itertools import count

from tests.kubernetes_api import KubernetesApi, Object

NO_ROOM = "0/3 nodes are available: 3 Insufficient cpu."


def labels(server: str, accelerator: str) -> dict[str, str]:
    return {"hearth.dev/server": server, "hearth.dev/accelerator": accelerator}


class Workloads:
    """Any thread. `room`: how many pods find a node."""

    def __init__(self, api: KubernetesApi, room: int = 100) -> None:
        self.api = api
        self.room = room
        self._numbers = count(1)
        self._turn = threading.RLock()
        api.on_change = self.reconcile

    def deploy(
        self,
        name: str,
        server: str,
        accelerator: str,
        *,
        user_rows: int = 32,
        replicas: int = 1,
        model: str = "m",
    ) -> None:
        """Apply a Deployment, and wait until its pods are ready."""
        metadata = {"name": name, "labels": labels(server, accelerator)}
        container = {
            "name": "api",
            "image": "hearth",
            "env": [
                {"name": "MODEL", "value": model},
                {"name": "USER_ROWS", "value": str(user_rows)},
            ],
            "ports": [{"name": "http", "containerPort": 7000}],
        }
        template = {"metadata": {"labels": metadata["labels"]}, "spec": {"containers": [container]}}
        spec = {"replicas": replicas, "selector": {}, "template": template}
        self.api.put("deployments", {"metadata": metadata, "spec": spec, "status": {}})
        self.settle()

    def pods(self, deployment: str) -> list[Object]:
        return [pod for pod in self.api.all("pods") if owner_of(pod) == deployment]

    def replicas_of(self, deployment: str) -> int:
        return int(self.api.get("deployments", deployment)["spec"]["replicas"])

    def settle(self) -> None:
        with self._turn:
            for _ in range(3):  # new pods ready, old ones told to go, old ones gone
                self.reconcile()
                self.run_pods()
                self.end_pods()

    def reconcile(self) -> None:
        """The Deployments' controller, with maxUnavailable 0."""
        with self._turn:
            for deployment in self.api.all("deployments"):
                self._reconcile(deployment)

    def run_pods(self) -> None:
        """The scheduler and the kubelets: what has room runs and is ready."""
        with self._turn:
            for pod in self.api.all("pods"):
                if not is_placed(pod):
                    self._schedule(pod)
                if is_placed(pod) and not is_ending(pod):
                    set_ready(pod)
                    self.api.put("pods", pod)

    def end_pods(self) -> None:
        """Those that were told to end have."""
        with self._turn:
            for pod in self.api.all("pods"):
                if is_ending(pod):
                    self.api.remove("pods", pod["metadata"]["name"])

    def _reconcile(self, deployment: Object) -> None:
        wanted, template = deployment["spec"]["replicas"], deployment["spec"]["template"]
        pods = [p for p in self.pods(deployment["metadata"]["name"]) if not is_ending(p)]
        new = [pod for pod in pods if revision_of(pod) == revision(template)]
        for _ in range(wanted - len(new)):
            pod = self._make(deployment)
            new.append(pod)
            pods.append(pod)
        old = [pod for pod in pods if pod not in new]
        num_ready = sum(is_ready(pod) for pod in new)
        self._end(old[: max(0, len(old) - (wanted - num_ready))])
        by_worth = sorted(new, key=lambda pod: (is_placed(pod), is_ready(pod), deletion_cost(pod)))
        self._end(by_worth[: max(0, len(new) - wanted)])

    def _make(self, deployment: Object) -> Object:
        name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
        pod = {
            "metadata": {
                "name": f"{name}-{next(self._numbers):03}",
                "labels": template["metadata"]["labels"],
                "annotations": template["metadata"].get("annotations", {})
                | {"revision": revision(template)},
                "creationTimestamp": timestamp(),
                "ownerReferences": [owner(name)],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
        }
        self._schedule(pod)
        return self.api.get("pods", pod["metadata"]["name"])

    def _schedule(self, pod: Object) -> None:
        others = [p for p in self.api.all("pods") if p["metadata"]["name"] != name_of(pod)]
        has_room = sum(map(is_placed, others)) < self.room
        condition = {"type": "PodScheduled", "status": "True" if has_room else "False"}
        if not has_room:
            condition |= {"reason": "Unschedulable", "message": NO_ROOM}
        pod["status"]["conditions"] = [condition]
        self.api.put("pods", pod)

    def _end(self, pods: list[Object]) -> None:
        for pod in pods:
            pod["metadata"]["deletionTimestamp"] = timestamp()
            self.api.put("pods", pod)


def owner(name: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": name}


def container_status(**status: object) -> Object:
    identity = {"name": "api", "image": "hearth", "imageID": "", "ready": False, "restartCount": 0}
    return identity | status


def revision(template: Object) -> str:
    return json.dumps(template["spec"], sort_keys=True)


def revision_of(pod: Object) -> str:
    return str(pod["metadata"]["annotations"]["revision"])


def deletion_cost(pod: Object) -> int:
    found = pod["metadata"]["annotations"].get("controller.kubernetes.io/pod-deletion-cost", "0")
    return int(found)


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def name_of(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def owner_of(pod: Object) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["name"])


def is_ending(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def has_condition(pod: Object, kind: str) -> bool:
    found = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
    return found.get(kind) == "True"


def is_placed(pod: Object) -> bool:
    return has_condition(pod, "PodScheduled")


def is_ready(pod: Object) -> bool:
    return has_condition(pod, "Ready")


def set_ready(pod: Object) -> None:
    number = int(name_of(pod).rpartition("-")[2])
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
    pod["status"] = {
        "phase": "Running",
        "podIP": f"10.0.{number // 250}.{number % 250 + 1}",
        "conditions": conditions,
        "containerStatuses": [container_status(ready=True, state={"running": {}})],
    }
