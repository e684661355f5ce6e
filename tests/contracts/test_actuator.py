"""What the controller may rely on, true of every Actuator.

An actuator joins by a factory in `SCENES`: a context that yields a Scene, made once for all tests.
Local processes and Ray's run an engine that starts ten times as fast as Hearth; it runs on Ray in
tests/cluster, and in local processes in tests/e2e/test_cluster.py.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import psutil
import pytest
import yaml

from cluster.actuators import Actuator, Machines
from cluster.actuators.deployments import Deployments
from cluster.actuators.local import LocalMachine
from cluster.actuators.ray_actors import RayMachines
from cluster.actuators.tended import TendedReplicas, Times
from cluster.actuators.upstreams_file import UpstreamsFile
from cluster.engines import ENGINES
from cluster.replicas import Group, Outcome, Recipes, Replica, ReplicaState
from lab.kit.ray_nodes import ray_nodes
from lab.kit.servers import ROOT, TIMEOUT_S, eventually
from proxy.upstreams.endpoint_slices import EndpointSlice, specs_of
from tests.cluster.asking import in_states, ready
from tests.cluster.foreign_engine import command_of
from tests.kubernetes_api import KubernetesApi
from tests.kubernetes_kubelet import Kubelet

ROOM = 2  # replicas of a CPU each
CHAT, WIDE, BROKEN = Group("chat", "core", 8), Group("chat", "core", 9), Group("bad", "core", 8)
VLLM = replace(ENGINES["vllm"], command=tuple(command_of("vllm").split()))
RECIPES = Recipes(
    {"chat": {"PYTHONPATH": str(ROOT)}, "bad": {}},
    {"core": {"CPU": 1}},
    {"chat": VLLM, "bad": replace(VLLM, command=("/no/such/model",))},
)
TIMES = Times(probe_s=0.1, leave_s=0.3, drain_s=30)


@dataclass(frozen=True, slots=True)
class Scene:
    """Machines with room for ROOM replicas. `open` is a controller's start."""

    open: Callable[[], Actuator]
    crash: Callable[[Replica], None]
    """Kill its process, so that it does not come back where it was."""
    clear: Callable[[], None]
    """Have no replica left, whatever becomes of its requests."""
    listed: Callable[[], Sequence[str]]
    """The urls that the proxy is told."""


def tended(folder: Path, machines: Callable[[], Machines]) -> Scene:
    upstreams_path = folder / "upstreams.yaml"

    def clear() -> None:
        there = machines()
        for each in there.placed():
            there.remove(each.name)
        there.close()

    def listed() -> list[str]:
        document = yaml.safe_load(upstreams_path.read_text())
        return [entry["url"] for entry in document["upstreams"]]

    return Scene(
        lambda: TendedReplicas(machines(), RECIPES, UpstreamsFile(upstreams_path), TIMES),
        crash,
        clear,
        listed,
    )


def crash(replica: Replica) -> None:
    assert replica.url is not None
    port = replica.url.rpartition(":")[2]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SERVICE_PORT") == port:
                process.kill()


@contextmanager
def local_scene(folder: Path) -> Iterator[Scene]:
    yield tended(folder, lambda: LocalMachine(folder / "replicas", {"CPU": ROOM}))


@contextmanager
def ray_scene(folder: Path) -> Iterator[Scene]:
    with ray_nodes(head={"CPU": ROOM}) as nodes:
        yield tended(folder, lambda: RayMachines(nodes.address, pins=True, place_timeout_s=2.0))


@contextmanager
def kubernetes_scene(folder: Path) -> Iterator[Scene]:
    """Pods that are processes, a Deployment for each group."""
    api = KubernetesApi()
    kubelet = Kubelet(api, folder / "pods", ROOM)
    for group, model in ((CHAT, "mock"), (WIDE, "mock"), (BROKEN, "/no/such/model")):
        name = f"{group.server}-{group.user_rows}"
        kubelet.deploy(
            name, group.server, group.accelerator,
            user_rows=group.user_rows, replicas=0, model=model,
        )  # fmt: skip

    def listed() -> list[str]:
        slices = map(EndpointSlice.model_validate, api.all("endpointslices"))
        return [spec.url for spec in specs_of(slices)]

    def crash_with_its_node(replica: Replica) -> None:
        kubelet.lose(replica.name)

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        path = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        patch.setattr(path, str(api.kubeconfig(folder)))
        yield Scene(
            lambda: Deployments("hearth", unplaced_after_s=1.0),
            crash_with_its_node,
            kubelet.clear,
            listed,
        )
    kubelet.stop()
    api.stop()


SCENES: dict[str, Callable[[Path], AbstractContextManager[Scene]]] = {
    "local": local_scene,
    "ray": ray_scene,
    "kubernetes": kubernetes_scene,
}


@pytest.fixture(scope="module", params=SCENES)
def _scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    with SCENES[request.param](tmp_path_factory.mktemp("scene")) as scene:
        yield scene


@pytest.fixture
def scene(_scene: Scene) -> Iterator[Scene]:
    yield _scene
    _scene.clear()


@pytest.fixture
def actuator(scene: Scene) -> Iterator[Actuator]:
    actuator = scene.open()
    yield actuator
    actuator.close()


def seen(actuator: Actuator) -> dict[str, tuple[str | None, ReplicaState]]:
    return {each.name: (each.url, each.state) for each in actuator.replicas()}


@contextmanager
def stream(replica: Replica, text: str) -> Iterator[HTTPResponse]:
    """An answer whose first token has come; the mock says what it is told."""
    host, _, port = (replica.url or "").removeprefix("http://").partition(":")
    client = HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    body = json.dumps({"text": text, "max_tokens": len(text), "stream": True})
    client.request("POST", "/inference", body, {"Content-Type": "application/json"})
    with client.getresponse() as answer:
        yield answer
    client.close()


def test_start_has_as_many_as_asked_and_says_how_many_find_no_room(
    scene: Scene, actuator: Actuator
) -> None:
    eventually(lambda: actuator.start(CHAT, 1) == Outcome() and actuator.replicas())
    assert actuator.start(CHAT, 1) == actuator.start(CHAT, 0) == Outcome()
    assert len(actuator.replicas()) == 1
    outcome = eventually(lambda: (it := actuator.start(CHAT, ROOM + 2)).unplaced == 2 and it)
    assert "cpu" in outcome.why.lower()
    replicas = ready(actuator, CHAT, ROOM)
    names = [each.name for each in replicas]
    assert names == sorted(names)
    eventually(lambda: sorted(scene.listed()) == sorted(each.url or "" for each in replicas))


def test_stop_ends_no_more_than_it_was_told_and_that_ends_its_streams(
    scene: Scene, actuator: Actuator
) -> None:
    (chat,) = ready(actuator, CHAT, 1)
    (wide,) = ready(actuator, WIDE, 1)  # rows are fixed: another group
    before = seen(actuator)
    actuator.stop(CHAT, 1)
    actuator.stop(Group("x", "core", 8), 0)
    assert seen(actuator) == before
    text = "b" * 250  # five seconds of tokens
    with stream(chat, text) as answer:
        for _ in range(2):
            actuator.stop(CHAT, 0)
            assert seen(actuator)[chat.name][1] is ReplicaState.DRAINING
        eventually(lambda: scene.listed() == [wide.url])
        assert answer.read().decode() == text
    eventually(lambda: list(actuator.replicas()) == [wide])


def test_a_controller_that_is_started_again_finds_what_runs(scene: Scene) -> None:
    first = scene.open()
    ready(first, CHAT, 2)
    first.stop(CHAT, 1)
    before = seen(first)
    assert {state for _, state in before.values()} == {ReplicaState.READY, ReplicaState.DRAINING}
    first.close()
    second = scene.open()
    try:
        eventually(lambda: seen(second).items() <= before.items())  # Ray may answer later
        assert second.start(CHAT, 1) == Outcome()
        (kept,) = ready(second, CHAT, 1)
        assert scene.listed() == [kept.url]
    finally:
        second.close()


def test_a_replica_that_crashes_is_missed_and_another_takes_its_place(
    scene: Scene, actuator: Actuator
) -> None:
    (replica,) = ready(actuator, CHAT, 1)
    scene.crash(replica)
    eventually(lambda: replica.url not in scene.listed())
    (other,) = ready(actuator, CHAT, 1)
    assert other.url != replica.url
    assert scene.listed() == [other.url]


def _is_tried_again(actuator: Actuator, failed: str) -> bool:
    """Whether another is tried after a while, or this one still is, in vain: it counts for
    nothing."""
    is_unplaced = actuator.start(BROKEN, 1).unplaced > 0
    return is_unplaced or any(each.name != failed for each in actuator.replicas())


def test_a_replica_that_never_works_is_listed_with_the_reason(
    scene: Scene, actuator: Actuator
) -> None:
    (failed,) = in_states(actuator, BROKEN, [ReplicaState.FAILED])
    assert "/no/such/model" in failed.why
    assert scene.listed() == []
    eventually(lambda: _is_tried_again(actuator, failed.name))
    actuator.stop(BROKEN, 0)
    eventually(lambda: not actuator.replicas())
