"""Calls to a Kubernetes API server through the official client, bounded in time.

Failures become errors of `cluster.errors`, or CallRefused.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import urllib3
from pydantic import BaseModel

from cluster.actuators.workloads import SELECTOR, Autoscaler, Deployment, KindList, Pod
from cluster.errors import ActuatorUnusable, ConfigFaulty

try:
    from kubernetes import client, config
except ImportError as error:
    raise ConfigFaulty("Kubernetes' client is missing; pip install 'hearth[cluster]'.") from error

TIMEOUT_S = (5.0, 20.0)  # to connect, and between bytes
ROLE = "deploy/kubernetes/controller/controller.yaml"

T = TypeVar("T")


class CallRefused(Exception):
    """The API server refused a call, with `status`, or the call cannot succeed now (None)."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Calls:
    """Calls within one namespace. One thread at a time."""

    def __init__(self, namespace: str) -> None:
        """Uses the pod's service account, or outside a pod the kubeconfig. Raises ConfigFaulty."""
        self.namespace = namespace
        self._client = client.ApiClient(_configuration())
        self._apps = client.AppsV1Api(self._client)
        self._core = client.CoreV1Api(self._client)
        self._autoscaling = client.AutoscalingV2Api(self._client)

    def deployments(self) -> tuple[Deployment, ...]:
        call = self._apps.list_namespaced_deployment
        return self._listed(call, KindList[Deployment], label_selector=SELECTOR)

    def pods(self) -> tuple[Pod, ...]:
        call = self._core.list_namespaced_pod
        return self._listed(call, KindList[Pod], label_selector=SELECTOR)

    def autoscalers(self) -> tuple[Autoscaler, ...]:
        """Raises CallRefused if the service account may not list them."""
        call = self._autoscaling.list_namespaced_horizontal_pod_autoscaler
        return KindList[Autoscaler].model_validate_json(self._call(call, self.namespace)).items

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

    def _listed(
        self, call: Callable[..., Any], kind: type[KindList[T]], **query: str
    ) -> tuple[T, ...]:
        try:
            return kind.model_validate_json(self._call(call, self.namespace, **query)).items
        except CallRefused as error:
            raise ActuatorUnusable(str(error)) from error
        except ValueError as error:
            raise ActuatorUnusable(f"The answer of Kubernetes is not a {kind.__name__}.") from error

    def _call(self, call: Callable[..., Any], *args: object, **query: str) -> bytes:
        """Returns the body of a 2xx answer. Raises CallRefused and ActuatorUnusable."""
        try:
            response = call(*args, **query, _request_timeout=TIMEOUT_S, _preload_content=False)
            return bytes(response.data)
        except client.ApiException as error:
            # 0: the TLS handshake failed.
            if error.status in (0, 401, 429) or error.status >= 500:
                raise ActuatorUnusable(str(_refusal(error))) from error
            raise _refusal(error) from error
        except (urllib3.exceptions.HTTPError, OSError, config.ConfigException) as error:
            raise ActuatorUnusable(
                f"Kubernetes cannot be reached ({error}); see `kubectl cluster-info`."
            ) from error


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
    return {"metadata": {"resourceVersion": deployment.resource_version}}


def _refusal(error: client.ApiException) -> CallRefused:
    try:
        message = _Status.model_validate_json(error.body or b"").message
    except ValueError:
        message = str(error.reason)
    remedy = f"; bind the Role of {ROLE} to this account" if error.status == 403 else ""
    return CallRefused(f"Kubernetes answers {error.status}: {message[:500]}{remedy}", error.status)


class _Status(BaseModel):
    message: str
