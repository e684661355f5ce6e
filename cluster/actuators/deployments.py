"""The actuator for Kubernetes: a group is a Deployment, a replica one of its pods.

The operator applies the Deployments (deploy/kubernetes). This module finds them by their labels and
scales them; Kubernetes does the rest. A deleted pod first leaves its Services, so that the proxy
sends it no more requests. It then sleeps in its preStop hook, drains on SIGTERM and exits.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import urllib3
from pydantic import BaseModel

from cluster.actuators.probes import ReplicaProbes
from cluster.engines import HEARTH, Engine
from cluster.errors import ActuatorUnusable, ConfigFaulty
from cluster.replicas import Group, Outcome, Replica, ReplicaState

try:
    from kubernetes import client, config

    from cluster.actuators.workloads import (
        ACCELERATOR_LABEL,
        ROWS_VARIABLE,
        SELECTOR,
        SERVER_LABEL,
        Deployment,
        Pod,
    )
except ImportError as error:
    raise ConfigFaulty("Kubernetes' client is missing; pip install 'hearth[cluster]'.") from error

log = logging.getLogger(__name__)

TIMEOUT_S = (5.0, 20.0)  # to connect, and between bytes
ROLE = "deploy/kubernetes/controller/controller.yaml"
MAX_TRIES = 5  # tries of a change, if others change the Deployment at the same time
CONFLICT = 409
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

T = TypeVar("T")


class CallRefused(Exception):
    """The API server refused a call, with `status`, or the call cannot succeed now (None)."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Calls:
    """Calls to an API server within one namespace, bounded in time. Failures become errors of
    `cluster.errors`, or CallRefused. One thread at a time."""

    def __init__(self, namespace: str) -> None:
        """Uses the pod's service account, or outside a pod the kubeconfig. Raises ConfigFaulty."""
        self.namespace = namespace
        self._client = client.ApiClient(_configuration())
        self._apps = client.AppsV1Api(self._client)
        self._core = client.CoreV1Api(self._client)
        self._autoscaling = client.AutoscalingV2Api(self._client)

    def deployments(self) -> list[Deployment]:
        call = self._apps.list_namespaced_deployment
        return [Deployment(each) for each in self._labelled(call)]

    def pods(self) -> list[Pod]:
        return [Pod(each) for each in self._labelled(self._core.list_namespaced_pod)]

    def autoscaler_of(self, deployment: str) -> str | None:
        """Returns the name of the autoscaler of a Deployment, if it has one. Raises CallRefused if
        the service account may not list them."""
        call = self._autoscaling.list_namespaced_horizontal_pod_autoscaler
        for each in self._call(call, self.namespace).items:
            target = each.spec.scale_target_ref
            if (target.kind, target.name) == ("Deployment", deployment):
                return str(each.metadata.name)
        return None

    def patch_scale(self, deployment: Deployment, replicas: int) -> None:
        """Raises CallRefused: 409 if the Deployment has changed since it was read."""
        body = {**_unchanged(deployment), "spec": {"replicas": replicas}}
        call = self._apps.patch_namespaced_deployment_scale
        self._call(call, deployment.name, self.namespace, body)

    def patch(self, deployment: Deployment, spec: dict[str, Any]) -> None:
        """Raises CallRefused, as `patch_scale`."""
        body = {**_unchanged(deployment), "spec": spec}
        self._call(self._apps.patch_namespaced_deployment, deployment.name, self.namespace, body)

    def patch_annotations(self, pod: str, annotations: dict[str, str]) -> None:
        """Raises CallRefused."""
        body = {"metadata": {"annotations": annotations}}
        self._call(self._core.patch_namespaced_pod, pod, self.namespace, body)

    def close(self) -> None:
        self._client.close()

    def _labelled(self, call: Callable[..., Any]) -> Sequence[Any]:
        """Returns the labelled objects that `call` lists. Raises ActuatorUnusable."""
        try:
            items: Sequence[Any] = self._call(call, self.namespace, label_selector=SELECTOR).items
            return items
        except CallRefused as error:
            raise ActuatorUnusable(str(error)) from error

    def _call(self, call: Callable[..., Any], *args: object, **query: str) -> Any:
        """Returns the object of a 2xx answer. Raises CallRefused and ActuatorUnusable."""
        try:
            return call(*args, **query, _request_timeout=TIMEOUT_S)
        except client.ApiException as error:
            # 0: the TLS handshake failed.
            if error.status in (0, 401, 429) or error.status >= 500:
                raise ActuatorUnusable(str(_refusal(error))) from error
            raise _refusal(error) from error
        except (urllib3.exceptions.HTTPError, OSError, config.ConfigException) as error:
            raise ActuatorUnusable(
                f"Kubernetes cannot be reached ({error}); see `kubectl cluster-info`."
            ) from error
        except ValueError as error:
            raise ActuatorUnusable(f"Kubernetes' answer cannot be read: {error!s:.300}") from error


def _configuration() -> client.Configuration:
    found = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=found)
    except config.ConfigException as no_pod:
        try:
            config.load_kube_config(client_configuration=found)
        except Exception as error:  # the loader may raise anything for an invalid file
            raise ConfigFaulty(
                f"Neither a service account ({no_pod}) nor a kubeconfig ({error}) was found; "
                "run in a pod, or point KUBECONFIG at a file."
            ) from error
    found.retries = False  # the controller checks again soon enough
    return found


def _unchanged(deployment: Deployment) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": deployment.item.metadata.resource_version}}


def _refusal(error: client.ApiException) -> CallRefused:
    try:
        message = _Status.model_validate_json(error.body or b"").message
    except ValueError:
        message = str(error.reason)
    remedy = f"; bind the Role of {ROLE} to this account" if error.status == 403 else ""
    return CallRefused(f"Kubernetes answers {error.status}: {message[:500]}{remedy}", error.status)


class _Status(BaseModel):
    message: str


class Deployments:
    """The Actuator on Kubernetes. Pods that cannot run for other reasons than lack of room, such as
    a wrong image, are `unplaced`, too, because Kubernetes itself keeps retrying them.

    If a group's rows differ from its Deployment's, the Deployment's template is changed, and
    Kubernetes rolls this out: old pods are deleted as new ones become ready.
    """

    def __init__(
        self,
        namespace: str,
        engines: Mapping[str, Engine] = MappingProxyType({}),
        *,
        unplaced_after_s: float = 300.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`engines` has the servers that do not run Hearth. The cluster may take `unplaced_after_s`
        to add a node for a pod; a pod without one is then removed and no longer listed. Raises
        ConfigFaulty if there is no account for the API server."""
        self._calls = Calls(namespace)
        self._engines = engines
        self._unplaced_after_s = unplaced_after_s
        self._clock = clock
        self._denied: set[str] = set()

    def replicas(self) -> Sequence[Replica]:
        return [pod.replica(group) for group, pod in self._pods() if not self._is_unplaced(pod)]

    def start(self, group: Group, count: int) -> Outcome:
        if count <= 0:
            return Outcome()

        def grow(deployment: Deployment) -> Outcome:
            num_more = max(0, count - deployment.replicas)
            has_other_rows = deployment.user_rows != group.user_rows
            if not num_more and not has_other_rows:
                return self._unplaced(deployment, group, count)
            self._check_owner(deployment)
            if has_other_rows:
                self._roll_out(deployment, group.user_rows, deployment.replicas + num_more)
            else:
                self._scale(deployment, count)
            return Outcome()

        try:
            return self._adjusted(group, grow)
        except CallRefused as error:
            return Outcome(unplaced=count, why=str(error))

    def stop(self, group: Group, count: int) -> None:
        count = max(0, count)

        def shrink(deployment: Deployment) -> None:
            # Pods with other rows than the template's are being replaced already.
            if deployment.replicas > count and deployment.user_rows == group.user_rows:
                self._check_owner(deployment)
                self._choose_victims(group, count)
                self._scale(deployment, count)

        self._allowed(f"stop replicas of {group}", lambda: self._adjusted(group, shrink))

    def close(self) -> None:
        self._calls.close()

    def _pods(self) -> list[tuple[Group, Pod]]:
        pods = sorted(self._calls.pods(), key=lambda pod: pod.name)
        return [(pod.group, pod) for pod in pods if pod.group is not None]

    def _is_unplaced(self, pod: Pod) -> bool:
        return bool(pod.why_unplaced) and pod.age_s(self._clock()) > self._unplaced_after_s

    def _adjusted(self, group: Group, change: Callable[[Deployment], T]) -> T:
        """Returns the result of `change` on the Deployment. Retries if others changed it."""
        for _ in range(MAX_TRIES):
            try:
                return change(self._deployment(group))
            except CallRefused as error:
                if error.status != CONFLICT:
                    raise
        raise CallRefused(
            f"the Deployment of {group} was changed by others {MAX_TRIES} times in a row"
        )

    def _deployment(self, group: Group) -> Deployment:
        labelled = group.server, group.accelerator
        found = [each for each in self._calls.deployments() if each.labelled == labelled]
        exact = [each for each in found if each.user_rows == group.user_rows]
        if len(exact) == 1 or len(found) == 1:
            return (exact or found)[0]
        wanted = f"{SERVER_LABEL}={group.server} and {ACCELERATOR_LABEL}={group.accelerator}"
        place = f"in the namespace {self._calls.namespace!r}"
        if not found:
            raise CallRefused(f"no Deployment {place} has the labels {wanted}; apply one")
        names = ", ".join(each.name for each in found)
        rows = f"{ROWS_VARIABLE}={group.user_rows}"
        raise CallRefused(
            f"several Deployments {place} have the labels {wanted}: {names}; have one with {rows}"
        )

    def _scale(self, deployment: Deployment, count: int) -> None:
        self._calls.patch_scale(deployment, count)
        log.info("scaled %s from %d to %d", deployment.name, deployment.replicas, count)

    def _roll_out(self, deployment: Deployment, user_rows: int, count: int) -> None:
        rows = {"name": ROWS_VARIABLE, "value": str(user_rows)}
        container = {"name": deployment.container.name, "env": [rows]}
        template = {"spec": {"containers": [container]}}
        self._calls.patch(deployment, {"replicas": count, "template": template})
        log.info("rolling out %s with %d user rows", deployment.name, user_rows)

    def _check_owner(self, deployment: Deployment) -> None:
        """Raises CallRefused if an autoscaler, such as one of KEDA's, would undo the change."""
        find = partial(self._calls.autoscaler_of, deployment.name)
        if autoscaler := self._allowed("see autoscalers", find):
            raise CallRefused(
                f"the HorizontalPodAutoscaler {autoscaler} owns {deployment.name}; "
                "delete it (KEDA: its ScaledObject), or leave scaling to it (dry_run: true)"
            )

    def _choose_victims(self, group: Group, count: int) -> None:
        """Have Kubernetes delete the ready pods with the least work first, if only `count` are to
        stay. It deletes pods that are not ready before these."""
        replicas = [pod.replica(of_group) for of_group, pod in self._pods() if of_group == group]
        ready = {
            each.url: each.name
            for each in replicas
            if each.state is ReplicaState.READY and each.url
        }
        num_going = len(ready) - count
        if not 0 < num_going < len(ready):
            return
        with closing(ReplicaProbes()) as probes:
            answers = probes.ask(dict.fromkeys(ready, self._engines.get(group.server, HEARTH)))
        busy_rows = {url: each.busy_rows or 0 for url, each in answers.items()}
        for url in sorted(ready, key=lambda url: busy_rows.get(url, 0))[:num_going]:
            mark = partial(self._calls.patch_annotations, ready[url], {DELETION_COST: "-1"})
            self._allowed("say which pods go first", mark)

    def _allowed(self, purpose: str, call: Callable[[], T]) -> T | None:
        """Returns the result of an optional call; None if it is refused, which is logged once."""
        try:
            return call()
        except CallRefused as error:
            if purpose not in self._denied:
                log.warning("cannot %s: %s", purpose, error)
            self._denied.add(purpose)
            return None

    def _unplaced(self, deployment: Deployment, group: Group, count: int) -> Outcome:
        """Returns how many of `count` will not run, and why. Removes pods that find no node."""
        pods = [pod for of_group, pod in self._pods() if of_group == group]
        reasons = [pod.why_unplaced for pod in pods if self._is_unplaced(pod)]
        if reasons:
            self._check_owner(deployment)
            # Kubernetes removes pods without a node before all others.
            self._scale(deployment, max(0, deployment.replicas - len(reasons)))
        replicas = [pod.replica(group) for pod in pods]
        reasons += [each.why for each in replicas if each.state is ReplicaState.FAILED]
        if deployment.why_no_pods:
            present = [each for each in replicas if each.state is not ReplicaState.DRAINING]
            reasons += [deployment.why_no_pods] * (count - len(present))
        return Outcome(unplaced=min(count, len(reasons)), why=reasons[0] if reasons else "")
