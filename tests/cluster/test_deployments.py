"""The actuator on Kubernetes, by the official client, against a scripted API server."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import V1Pod

from cluster.actuators import deployments
from cluster.actuators.deployments import MAX_TRIES, Deployments
from cluster.actuators.workloads import DEFAULT_ROWS, Pod
from cluster.errors import ActuatorUnusable, ConfigFaulty
from cluster.replicas import Group, Outcome, ReplicaState
from inference_api.settings import Settings as ApiSettings
from lab.kit.servers import TIMEOUT_S
from tests.kubernetes_api import Answer, KubernetesApi, Object, garbage, half, hang, refuse, reset
from tests.kubernetes_workloads import NO_ROOM, Workloads, container_status, labels, name_of

CHAT = Group("chat", "H100", 32)
CHAT_16 = Group("chat", "H100", 16)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    server = KubernetesApi()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = str(server.kubeconfig(tmp_path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", path)
    yield server
    server.stop()


@pytest.fixture
def cluster(api: KubernetesApi) -> Workloads:
    made = Workloads(api)
    made.deploy("chat-h100", "chat", "H100", replicas=2)
    return made


@pytest.fixture
def later() -> list[timedelta]:
    """How much later it is for the actuator; appended to."""
    return [timedelta()]


@pytest.fixture
def actuator(api: KubernetesApi, later: list[timedelta]) -> Iterator[Deployments]:
    with closing(Deployments("hearth", clock=lambda: datetime.now(UTC) + later[-1])) as made:
        yield made


def staying(actuator: Deployments) -> list[str]:
    """The names of those that are not being stopped."""
    replicas = actuator.replicas()
    return [each.name for each in replicas if each.state is not ReplicaState.DRAINING]


def states(actuator: Deployments) -> list[tuple[int, ReplicaState]]:
    return [(each.group.user_rows, each.state) for each in actuator.replicas()]


def writes(api: KubernetesApi) -> list[Any]:
    """Of Deployments and their scale."""
    bodies = [request.body for request in api.requests if request.method == "PATCH"]
    return [body["spec"] for body in bodies if "spec" in body]


def test_replicas_are_pods_with_their_states(cluster: Workloads, actuator: Deployments) -> None:
    first, second = actuator.replicas()
    assert (first.name, first.group, first.state) == ("chat-h100-001", CHAT, ReplicaState.READY)
    assert (first.url, second.url) == ("http://10.0.0.2:7000", "http://10.0.0.3:7000")
    cluster.api.patch("deployments", "chat-h100", {"spec": {"replicas": 1}}, is_scale=True)
    assert sorted(states(actuator)) == [(32, ReplicaState.DRAINING), (32, ReplicaState.READY)]
    cluster.settle()
    assert len(actuator.replicas()) == 1


def test_start_scales_up_once_and_never_down(cluster: Workloads, actuator: Deployments) -> None:
    assert actuator.start(CHAT, 4) == Outcome()
    assert states(actuator) == [(32, ReplicaState.READY)] * 2 + [(32, ReplicaState.STARTING)] * 2
    cluster.settle()
    assert states(actuator) == [(32, ReplicaState.READY)] * 4
    for count in (4, 3, 0, -5):
        assert actuator.start(CHAT, count) == Outcome()
    assert cluster.replicas_of("chat-h100") == 4
    assert len(writes(cluster.api)) == 1


def test_stop_scales_down_once_and_never_up(cluster: Workloads, actuator: Deployments) -> None:
    for count in (1, 1, 3):
        actuator.stop(CHAT, count)
        assert len(staying(actuator)) == cluster.replicas_of("chat-h100") == 1
    actuator.stop(CHAT, -7)
    assert cluster.replicas_of("chat-h100") == 0
    assert len(writes(cluster.api)) == 2


def test_a_deployment_without_a_number_has_one_replica(
    api: KubernetesApi, actuator: Deployments
) -> None:
    Workloads(api).deploy("chat-h100", "chat", "H100")
    deployment = api.get("deployments", "chat-h100")
    del deployment["spec"]["replicas"]
    api.put("deployments", deployment)
    assert actuator.start(CHAT, 1) == Outcome()
    assert actuator.start(CHAT, 2) == Outcome()
    assert staying(actuator) == ["chat-h100-001", "chat-h100-002"]


def test_other_rows_are_rolled_out(cluster: Workloads, actuator: Deployments) -> None:
    assert actuator.start(CHAT_16, 2) == Outcome()
    assert (
        sorted(states(actuator))
        == [(16, ReplicaState.STARTING)] * 2 + [(32, ReplicaState.READY)] * 2
    )
    assert actuator.start(CHAT_16, 2) == Outcome()
    actuator.stop(CHAT, 0)
    assert cluster.replicas_of("chat-h100") == 2
    cluster.settle()
    assert states(actuator) == [(16, ReplicaState.READY)] * 2
    environment = cluster.pods("chat-h100")[0]["spec"]["containers"][0]["env"]
    assert environment == [{"name": "MODEL", "value": "m"}, {"name": "USER_ROWS", "value": "16"}]
    assert len(writes(cluster.api)) == 1


def test_fewer_replicas_with_other_rows_take_over_before_any_goes(
    cluster: Workloads, actuator: Deployments
) -> None:
    assert actuator.start(CHAT_16, 1) == Outcome()
    assert cluster.replicas_of("chat-h100") == 2
    cluster.settle()
    actuator.stop(CHAT_16, 1)
    cluster.settle()
    assert states(actuator) == [(16, ReplicaState.READY)]


def test_what_finds_no_node_is_told_and_taken_back(
    cluster: Workloads, actuator: Deployments, later: list[timedelta]
) -> None:
    cluster.room = 3
    assert actuator.start(CHAT, 5).unplaced == 0
    cluster.settle()
    waiting = [each for each in actuator.replicas() if each.state is ReplicaState.STARTING]
    assert [each.why for each in waiting] == [f"not placed: {NO_ROOM}"] * 2
    later.append(timedelta(seconds=305))
    assert states(actuator) == [(32, ReplicaState.READY)] * 3
    assert actuator.start(CHAT, 5) == Outcome(unplaced=2, why=f"not placed: {NO_ROOM}")
    assert cluster.replicas_of("chat-h100") == 3
    cluster.settle()
    assert len(cluster.pods("chat-h100")) == 3, "nobody waits for a node that nobody plans with"
    later.append(timedelta())
    cluster.room = 10  # a node has come, and another plan
    for _ in range(2):
        assert actuator.start(CHAT, 5) == Outcome()
        cluster.settle()
    assert states(actuator) == [(32, ReplicaState.READY)] * 5


def test_pods_that_a_quota_forbids_are_unplaced(cluster: Workloads, actuator: Deployments) -> None:
    deployment = cluster.api.get("deployments", "chat-h100")
    message = "pods is forbidden: exceeded quota: gpus"
    condition = {"type": "ReplicaFailure", "status": "True", "message": message}
    deployment["status"] = {"conditions": [condition]}
    deployment["spec"]["replicas"] = 4
    cluster.api.put("deployments", deployment)
    assert actuator.start(CHAT, 4) == Outcome(unplaced=2, why=message)


def test_a_pod_whose_container_cannot_run_has_failed(
    cluster: Workloads, actuator: Deployments
) -> None:
    pod = cluster.pods("chat-h100")[0]
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    pod["status"]["conditions"][1]["status"] = "False"
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    cluster.api.put("pods", pod)
    first, second = actuator.replicas()
    assert (first.state, second.state) == (ReplicaState.FAILED, ReplicaState.READY)
    assert first.why == "ImagePullBackOff: no such image"
    assert second.why == ""
    assert actuator.start(CHAT, 2) == Outcome(unplaced=1, why=first.why)


def test_why_a_container_crashes_is_what_it_said_last(
    cluster: Workloads, actuator: Deployments
) -> None:
    pod = cluster.pods("chat-h100")[0]
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}
    ended = {
        "reason": "Error",
        "exitCode": 3,
        "message": "x" * 900 + "MODEL=/none: no such folder\n",
    }
    status = container_status(state={"waiting": waiting}, lastState={"terminated": ended})
    pod["status"] = {"phase": "Running", "conditions": [], "containerStatuses": [status]}
    cluster.api.put("pods", pod)
    first, _ = actuator.replicas()
    assert first.why.endswith("MODEL=/none: no such folder")
    assert first.why.startswith("CrashLoopBackOff: x")


class Answering(BaseHTTPRequestHandler):
    """A replica's /ready; its busy rows are its server's."""

    def do_GET(self) -> None:
        body = json.dumps({"user_rows": 32, "busy_rows": self.server.busy_rows}).encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def busy(cluster: Workloads, actuator: Deployments) -> Iterator[dict[str, int]]:
    """Busy rows of three replicas, each with a server of its own."""
    actuator.start(CHAT, 3)
    cluster.settle()
    rows, servers = dict(zip(map(name_of, cluster.pods("chat-h100")), (5, 0, 2), strict=True)), []
    for name, count in rows.items():
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        server.busy_rows = count  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        servers.append(server)
        pod = cluster.api.get("pods", name)
        pod["status"]["podIP"] = "127.0.0.1"
        port = {"name": "http", "containerPort": server.server_address[1]}
        pod["spec"]["containers"][0]["ports"] = [port]
        cluster.api.put("pods", pod)
    yield rows
    for server in servers:
        server.shutdown()
        server.server_close()


def test_who_has_least_to_finish_goes_first(
    cluster: Workloads, actuator: Deployments, busy: dict[str, int]
) -> None:
    _, few, many = sorted(busy, key=lambda name: busy[name])
    actuator.stop(CHAT, 2)
    assert set(staying(actuator)) == {few, many}
    cluster.end_pods()
    actuator.stop(CHAT, 1)
    assert staying(actuator) == [many]


def test_replicas_go_also_where_nobody_may_say_which(
    cluster: Workloads,
    actuator: Deployments,
    busy: dict[str, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.api.fail(403, method="PATCH", path="/pods/", times=9)
    for count in (2, 1):
        actuator.stop(CHAT, count)
        assert len(staying(actuator)) == count
        cluster.end_pods()
    assert caplog.text.count("cannot say which pods go first") == 1


def test_evicted_pods_and_pods_of_others_are_no_replicas(
    cluster: Workloads, actuator: Deployments
) -> None:
    pod = cluster.pods("chat-h100")[0]
    pod["status"]["phase"] = "Failed"
    cluster.api.put("pods", pod)
    other = {"metadata": {"name": "redis-0", "labels": {"app": "redis"}}, "spec": {}}
    cluster.api.put("pods", other)
    assert len(actuator.replicas()) == 1


def test_names_that_are_no_labels_are_annotations(
    cluster: Workloads, actuator: Deployments
) -> None:
    group = Group("chat:prod", "NVIDIA A100/80G", 32)
    annotations = labels(group.server, group.accelerator)
    for kind in ("deployments", "pods"):
        for item in cluster.api.all(kind):
            item["metadata"].setdefault("annotations", {}).update(annotations)
            if kind == "deployments":
                item["spec"]["template"]["metadata"]["annotations"] = annotations
            cluster.api.put(kind, item)
    assert {each.group for each in actuator.replicas()} == {group}
    assert actuator.start(group, 3) == Outcome()
    assert "chat-h100-003" in staying(actuator)


def test_what_has_no_deployment_or_several_is_unplaced(
    cluster: Workloads, actuator: Deployments
) -> None:
    nowhere = Group("chat", "B200", 32)
    assert "no Deployment in the namespace 'hearth'" in actuator.start(nowhere, 2).why
    assert actuator.start(nowhere, 2).unplaced == 2
    actuator.stop(nowhere, 0)
    cluster.deploy("chat-8", "chat", "H100", user_rows=8)
    outcome = actuator.start(CHAT_16, 9)
    assert outcome.unplaced == 9
    assert "chat-8, chat-h100; have one with USER_ROWS=16" in outcome.why
    assert writes(cluster.api) == []


def test_of_several_deployments_the_one_with_the_rows_is_scaled(
    cluster: Workloads, actuator: Deployments
) -> None:
    cluster.deploy("chat-h100-16", "chat", "H100", user_rows=16)
    assert actuator.start(CHAT_16, 2) == Outcome()
    actuator.stop(CHAT, 1)
    assert cluster.replicas_of("chat-h100-16") == 2
    assert cluster.replicas_of("chat-h100") == 1


def autoscaler(name: str, deployment: str) -> Object:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment}
    return {"metadata": {"name": name}, "spec": {"scaleTargetRef": target, "maxReplicas": 9}}


def test_a_deployment_has_one_owner(
    cluster: Workloads, actuator: Deployments, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.api.put("horizontalpodautoscalers", autoscaler("other", "chat-a100"))
    assert actuator.start(CHAT, 3).unplaced == 0
    cluster.api.put("horizontalpodautoscalers", autoscaler("keda-hpa-chat", "chat-h100"))
    actuator.stop(CHAT, 1)
    whys = (actuator.start(CHAT, 4).why, actuator.start(CHAT_16, 1).why, caplog.text)
    assert all("HorizontalPodAutoscaler keda-hpa-chat owns chat-h100" in why for why in whys)
    assert len(writes(cluster.api)) == 1
    assert actuator.start(CHAT, 3) == Outcome()  # nothing to change, nothing to refuse


def test_autoscalers_that_may_not_be_seen_are_said_once(
    cluster: Workloads, actuator: Deployments, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.api.fail(403, path="horizontalpodautoscalers", times=9)
    actuator.start(CHAT, 3)
    actuator.start(CHAT, 4)
    assert cluster.replicas_of("chat-h100") == 4
    assert caplog.text.count("cannot see autoscalers") == 1


def test_who_was_faster_is_not_undone(cluster: Workloads, actuator: Deployments) -> None:
    """Somebody scales to 6 after we have read 2, and we asked for 4: 6 stay."""
    cluster.api.fail(overtaking(cluster, 6), method="PATCH")
    assert actuator.start(CHAT, 4) == Outcome()
    assert cluster.replicas_of("chat-h100") == 6
    cluster.api.fail(overtaking(cluster, 1), method="PATCH")
    actuator.stop(CHAT, 3)
    assert cluster.replicas_of("chat-h100") == 1


def overtaking(cluster: Workloads, count: int) -> Answer:
    def answer(handler: Any) -> None:
        cluster.api.patch("deployments", "chat-h100", {"spec": {"replicas": count}}, is_scale=True)
        refuse(409)(handler)

    return answer


def test_a_stale_version_is_refused_by_the_server_itself(
    cluster: Workloads, actuator: Deployments
) -> None:
    cluster.api.fail(404, path="horizontalpodautoscalers")  # read between list and patch
    (deployment,) = actuator._calls.deployments()
    cluster.api.patch("deployments", "chat-h100", {"spec": {"replicas": 5}}, is_scale=True)
    with pytest.raises(deployments.CallRefused) as caught:
        actuator._calls.patch_scale(deployment, 9)
    assert caught.value.status == 409


def test_endless_conflicts_end(cluster: Workloads, actuator: Deployments) -> None:
    cluster.api.fail(409, method="PATCH", times=10**6)
    outcome = actuator.start(CHAT, 4)
    assert outcome.unplaced == 4
    assert "was changed by others 5 times in a row" in outcome.why
    assert len(writes(cluster.api)) == MAX_TRIES


@pytest.mark.parametrize(
    ("status", "message"), [(403, "bind the Role of"), (404, "404"), (422, "422")]
)
def test_a_refused_change_is_told(
    cluster: Workloads,
    actuator: Deployments,
    status: int,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.api.fail(status, method="PATCH", times=3)
    assert message in actuator.start(CHAT, 3).why
    assert message in actuator.start(CHAT_16, 3).why
    actuator.stop(CHAT, 0)
    assert f"cannot stop replicas of {CHAT}" in caplog.text
    assert message in caplog.text
    assert cluster.replicas_of("chat-h100") == 2


FAULTS = [
    refuse(403),
    refuse(401),
    refuse(500),
    refuse(503),
    refuse(429),
    half,
    garbage,
    reset,
    hang,
]


@pytest.mark.parametrize("answer", FAULTS)
def test_an_api_server_that_does_not_list_is_unusable(
    cluster: Workloads, actuator: Deployments, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "TIMEOUT_S", (5.0, 0.3))
    for ask in (actuator.replicas, lambda: actuator.start(CHAT, 9), lambda: actuator.stop(CHAT, 0)):
        cluster.api.fail(answer)
        with pytest.raises(ActuatorUnusable):
            ask()
    assert writes(cluster.api) == []
    assert len(actuator.replicas()) == 2


@pytest.mark.parametrize("answer", [refuse(500), reset, hang])
def test_an_api_server_that_does_not_scale_is_unusable(
    cluster: Workloads, actuator: Deployments, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "TIMEOUT_S", (5.0, 0.3))
    cluster.api.fail(answer, method="PATCH")
    with pytest.raises(ActuatorUnusable):
        actuator.start(CHAT, 9)
    assert actuator.start(CHAT, 9) == Outcome()


def test_an_api_server_that_is_away_is_unusable(api: KubernetesApi, tmp_path: Path) -> None:
    with closing(Deployments("hearth")) as actuator:
        api.stop()
        with pytest.raises(ActuatorUnusable, match="cannot be reached"):
            actuator.replicas()
    api.stop = lambda: None  # type: ignore[method-assign]


@pytest.mark.parametrize("content", [None, "", "[]", "\0", "apiVersion: v1\nkind: Config\n"])
def test_without_an_account_nothing_starts(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    with pytest.raises(ConfigFaulty, match="point KUBECONFIG at a file"):
        Deployments("hearth")


def test_without_the_client_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['kubernetes'] = None; import cluster.actuators.deployments"
    tried = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert "ConfigFaulty: Kubernetes' client is missing; pip install" in tried.stderr


def test_a_pod_has_its_own_account(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader is the client's own; that it comes first is ours."""
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_text("certificate")
    loader = "kubernetes.config.incluster_config."
    monkeypatch.setattr(f"{loader}SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{loader}SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.1.2.3")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    configuration = deployments._configuration()
    assert configuration.host == "https://10.1.2.3:443"
    assert configuration.api_key["BearerToken"] == "bearer secret"


def test_the_default_of_rows_is_that_of_the_process() -> None:
    assert ApiSettings.model_fields["user_rows"].default == DEFAULT_ROWS


@pytest.mark.parametrize("value", ["16", "x", "-1", "9" * 5000, "", None])
def test_rows_that_are_no_number_are_the_default(value: str | None) -> None:
    env = None if value is None else [{"name": "USER_ROWS", "value": value}]
    container = {"name": "api", "env": env}
    metadata = {"name": "p", "labels": labels("chat", "H100")}
    item = {"metadata": metadata, "spec": {"containers": [container]}, "status": {}}
    pod = Pod(V1Pod.from_dict(item))
    assert pod.group is not None
    assert pod.group.user_rows == (16 if value == "16" else DEFAULT_ROWS)


def test_addresses_are_those_of_the_port_called_http() -> None:
    def url(ip: str, *ports: Object) -> str | None:
        container = {"name": "api", "ports": list(ports)}
        spec, status = {"containers": [container]}, {"podIP": ip}
        metadata = {"name": "p", "labels": labels("chat", "H100")}
        item = V1Pod.from_dict({"metadata": metadata, "spec": spec, "status": status})
        return Pod(item).replica(CHAT).url

    http, other = {"name": "http", "containerPort": 7001}, {"name": "m", "containerPort": 9}
    assert url("10.0.0.1", other, http) == "http://10.0.0.1:7001"
    assert url("fd00::1", {"containerPort": 8}) == "http://[fd00::1]:8"
    assert url("10.0.0.1") == "http://10.0.0.1:7000"
    assert url("") is None
