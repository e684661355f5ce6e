"""The roles of deploy/kubernetes against the requests that the processes make."""

from contextlib import closing
from pathlib import Path

import pytest

from cluster.actuators.deployments import Deployments
from cluster.replicas import Group
from lab.kit.servers import eventually
from proxy.upstreams.endpoint_slices import ApiServer, EndpointSlices, Services
from tests.deploy.manifests import by_kind
from tests.kubernetes_api import PATH, KubernetesApi
from tests.kubernetes_workloads import Workloads


def verbs_of(role: str) -> set[tuple[str, str]]:
    """What it allows: pairs of a path's kind and a verb."""
    (found,) = (each for each in by_kind("controller", "Role") if each["metadata"]["name"] == role)
    return {
        (f"{group}/{resource}", verb)
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(api: KubernetesApi) -> set[tuple[str, str]]:
    """What the API server was asked for, in the same terms."""
    pairs = set()
    for request in api.requests:
        found = PATH.fullmatch(request.path)
        assert found is not None
        group = found["group"].split("/")[2] if found["group"].startswith("/apis/") else ""
        kind = found["kind"] + (found["scale"] or "")
        is_watch, is_one = "watch" in request.query, found["name"] is not None
        reading = "watch" if is_watch else "get" if is_one else "list"
        pairs.add((f"{group}/{kind}", "patch" if request.method == "PATCH" else reading))
    return pairs


def test_roles_allow_what_is_asked_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = KubernetesApi()
    cluster = Workloads(api)
    cluster.deploy("chat", "chat", "cpu-core", replicas=3)
    for pod in cluster.pods("chat"):
        api.put("pods", pod | {"status": pod["status"] | {"podIP": "127.0.0.1"}})
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(api.kubeconfig(tmp_path)))
    with closing(Deployments("hearth")) as actuator:
        actuator.start(Group("chat", "cpu-core", 32), 4)
        cluster.settle()
        actuator.stop(Group("chat", "cpu-core", 32), 2)
        actuator.start(Group("chat", "cpu-core", 16), 2)
    assert asked(api) == verbs_of("controller")

    api.requests.clear()
    discovery = EndpointSlices(ApiServer(api.url, tmp_path), Services("hearth", ("chat",)))
    discovery.start(lambda: None)
    eventually(lambda: api.num_watches == 1)
    discovery.stop()
    assert asked(api) == verbs_of("proxy")
    api.stop()
