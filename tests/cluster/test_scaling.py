"""Requests through a real proxy while replicas come, go and die."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from cluster.actuators import Machines
from cluster.actuators.deployments import Deployments
from cluster.actuators.ray_actors import RayMachines
from cluster.actuators.tended import TendedReplicas, Times
from cluster.actuators.upstreams_file import Listed, UpstreamsFile
from cluster.engines import ENGINES
from cluster.replicas import Group, Recipes, Replica
from lab.kit.ray_nodes import RayNodes, ray_nodes
from lab.kit.servers import ROOT, TIMEOUT_S, eventually
from tests.cluster.asking import ready
from tests.cluster.foreign_engine import command_of
from tests.kubernetes_api import KubernetesApi
from tests.kubernetes_kubelet import Kubelet
from tests.proxy.support import ProxyProcess, bearer, running_proxy

GROUP = Group("chat", "core", 8)
# An answer of 60 tokens takes more than a second: what is stopped always has streams.
RECIPES = Recipes(
    {"chat": {"MOCK_MODEL": "1", "MOCK_TOKENS_PER_SECOND": "50"}}, {"core": {"CPU": 1}}
)
# An engine that says as much in the same time, and starts in a tenth of Hearth's.
OF_ANOTHER_ENGINE = Recipes(
    {"chat": {"PYTHONPATH": str(ROOT)}},
    {"core": {"CPU": 1}},
    {"chat": replace(ENGINES["vllm"], command=tuple(command_of("vllm").split()))},
)
TIMES = Times(probe_s=0.2, leave_s=3, drain_s=60)
NUM_CLIENTS = 6


@dataclass(frozen=True, slots=True)
class Asked:
    began_s: float
    text: str
    status: int
    answer: str
    is_cut: bool

    @property
    def is_right(self) -> bool:
        return self.status == 200 and self.answer == self.text and not self.is_cut


class Load:
    """Clients that ask, each one request after the other. `asked` grows until `end`."""

    def __init__(self, proxy_url: str) -> None:
        self._host = urlsplit(proxy_url).netloc
        self._must_end = threading.Event()
        self.asked: list[Asked] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(NUM_CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._must_end.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _run(self, number: int) -> None:
        count = 0
        while not self._must_end.is_set():
            count += 1
            self.asked.append(self._ask(f"client {number}, request {count}".ljust(60, ".")))

    def _ask(self, text: str) -> Asked:
        began_s, body = time.monotonic(), json.dumps({"text": text, "max_tokens": 100})
        client = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
        status, answer, is_cut = 0, b"", False
        try:
            headers = bearer() | {"Content-Type": "application/json"}
            client.request("POST", "/inference", body, headers)
            response = client.getresponse()
            status = response.status
            answer = response.read()
        except (OSError, http.client.HTTPException):
            is_cut = True
        finally:
            client.close()
        return Asked(began_s, text, status, answer.decode(errors="replace"), is_cut)


@contextmanager
def loaded(folder: Path, **upstreams: Any) -> Iterator[tuple[ProxyProcess, Load]]:
    """A proxy that follows the upstreams, and clients that never rest."""
    with running_proxy(folder, "http://127.0.0.1:9", **upstreams) as proxy:
        eventually(lambda: '"ready"' in proxy.metric("/ready"))
        load = Load(proxy.url)
        try:
            yield proxy, load
        finally:
            load.end()


def clear(machines: Machines) -> None:
    """Once nobody tends them any more."""
    for each in machines.placed():
        machines.remove(each.name)
    machines.close()


def answered_by(proxy: ProxyProcess) -> set[object]:
    return {line.get("upstream") for line in proxy.audit() if line.get("status") == 200}


def test_no_request_is_lost_while_pods_come_and_go_and_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Kubernetes the proxy hears of replicas by their Service's EndpointSlices."""
    api = KubernetesApi()
    kubelet = Kubelet(api, tmp_path / "pods", room=3)
    kubelet.deploy("chat", "chat", "core", user_rows=GROUP.user_rows, model="mock")
    path = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(path, str(api.kubeconfig(tmp_path)))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    actuator = Deployments("hearth")
    wider = replace(GROUP, user_rows=9)
    try:
        ready(actuator, GROUP, 1)
        with loaded(tmp_path, UPSTREAMS_SERVICE="hearth/chat", KUBERNETES_API=api.url) as it:
            proxy, load = it
            ready(actuator, GROUP, 2)
            eventually(lambda: len(answered_by(proxy)) == 2)
            actuator.start(wider, 2)
            eventually(lambda: {each.group for each in actuator.replicas()} == {wider})
            ready(actuator, wider, 2)
            actuator.stop(wider, 1)
            ready(actuator, wider, 1)
            seen = len(load.asked)
            eventually(lambda: len(load.asked) > seen + NUM_CLIENTS)
        assert [each for each in load.asked if not each.is_right] == []
    finally:
        actuator.close()
        kubelet.stop()
        api.stop()


NODE = {"CPU": 1}


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """Each has room for one replica. Tests kill them, and begin by adding what they need."""
    with ray_nodes(NODE, NODE, NODE) as nodes:
        yield nodes


def have(nodes: RayNodes, count: int) -> None:
    """So many nodes, if there are fewer."""
    for _ in range(len(nodes), count):
        nodes.add(NODE)


@pytest.fixture
def upstreams(tmp_path: Path) -> UpstreamsFile:
    return UpstreamsFile(tmp_path / "upstreams.yaml")


@pytest.fixture
def on_ray(
    nodes: RayNodes, upstreams: UpstreamsFile, request: pytest.FixtureRequest
) -> Iterator[TendedReplicas]:
    actuator = TendedReplicas(RayMachines(nodes.address), request.param, upstreams, TIMES)
    try:
        yield actuator
    finally:
        actuator.close()
        clear(RayMachines(nodes.address))


@pytest.mark.parametrize("on_ray", [OF_ANOTHER_ENGINE], indirect=True, ids=["vllm"])
def test_a_node_that_dies_takes_nothing_with_it_but_what_ran_there(
    nodes: RayNodes, on_ray: TendedReplicas, tmp_path: Path
) -> None:
    have(nodes, 3)
    replica, _ = ready(on_ray, GROUP, 2)
    with loaded(tmp_path, UPSTREAMS_FILE=str(tmp_path / "upstreams.yaml")) as (proxy, load):
        eventually(lambda: len(answered_by(proxy)) == 2)
        victim = replica.url or ""
        nodes.kill(node_of(nodes, replica))
        killed_s = time.monotonic()
        eventually(lambda: victim not in {each.url for each in on_ray.replicas()})
        ready(on_ray, GROUP, 2)
        eventually(lambda: len(answered_by(proxy)) == 3)
    failed = [each for each in load.asked if not each.is_right]
    assert [each for each in failed if each.began_s > killed_s] == []
    assert all(each.is_cut or each.status >= 500 for each in failed), "no short success"
    broken = [line for line in proxy.audit() if line["outcome"] != "complete"]
    address = urlsplit(victim).netloc
    assert [line for line in broken if address not in f"{line}"] == []


@pytest.mark.parametrize(
    ("lost", "on_ray"),
    [("ray::ApiActor", OF_ANOTHER_ENGINE), ("raylet", RECIPES)],
    indirect=["on_ray"],
    ids=["actor-vllm", "raylet-hearth"],
)
def test_no_process_outlives_the_ray_that_started_it(
    nodes: RayNodes, on_ray: TendedReplicas, lost: str
) -> None:
    have(nodes, 2)
    (replica,) = ready(on_ray, GROUP, 1)
    node = node_of(nodes, replica)
    tree = nodes.processes(node)
    api = api_in(tree, replica)
    those(tree, lambda process: process.name().startswith(lost))[0].kill()
    assert psutil.wait_procs(api, timeout=TIMEOUT_S)[1] == []
    ready(on_ray, GROUP, 1)
    if lost == "raylet":
        nodes.kill(node)


@pytest.mark.parametrize("on_ray", [OF_ANOTHER_ENGINE], indirect=True, ids=["vllm"])
def test_ray_runs_another_engine_and_ends_it_behind_its_last_answer(
    nodes: RayNodes, on_ray: TendedReplicas, upstreams: UpstreamsFile
) -> None:
    have(nodes, 1)
    (replica,) = ready(on_ray, GROUP, 1)
    rows, server, url = GROUP.user_rows, GROUP.server, replica.url or ""
    assert upstreams.listed == (Listed(url=url, health_path="/health", rows=rows, server=server),)
    text, url = "x" * 200, f"{replica.url}/inference"  # a second longer than `leave_s`
    with requests.post(url, json={"text": text}, timeout=TIMEOUT_S, stream=True) as answer:
        on_ray.stop(GROUP, 0)
        assert answer.text == text
    eventually(lambda: not on_ray.replicas())


def api_in(tree: list[psutil.Process], replica: Replica) -> list[psutil.Process]:
    """The replica's processes among those of a node."""
    port = str(urlsplit(replica.url or "").port)
    return those(tree, lambda process: process.environ().get("SERVICE_PORT") == port)


def those(
    tree: list[psutil.Process], holds: Callable[[psutil.Process], bool]
) -> list[psutil.Process]:
    """But for processes that end meanwhile."""
    found = []
    for process in tree:
        with suppress(psutil.Error):
            if holds(process):
                found.append(process)
    return found


def node_of(nodes: RayNodes, replica: Replica) -> int:
    return next(at for at in range(len(nodes)) if api_in(nodes.processes(at), replica))
