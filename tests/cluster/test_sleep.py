"""From one replica to none and back, by who asks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests
from flask import Flask
from werkzeug.serving import make_server

from cluster.actuators.deployments import Deployments
from cluster.config import ServerKeys
from cluster.controller.app import create_app
from cluster.controller.cycle import ControllerParts
from cluster.controller.loop import Controller
from cluster.controller.optimizer import OptimizerClient
from cluster.controller.pages import PageReader
from cluster.controller.sleep import StartForecast, StartTimes
from cluster.replicas import Group, Replica, ReplicaState
from lab.kit.servers import TIMEOUT_S, eventually
from tests.cluster.fleet import config, system, system_json
from tests.cluster.test_controller import DEADLINE_S, Running, run  # noqa: F401
from tests.cluster.test_cycle import LOW, PERIOD_S, World, make_world, settled  # noqa: F401
from tests.kubernetes_api import KubernetesApi
from tests.kubernetes_kubelet import Kubelet
from tests.proxy.support import bearer, running_proxy, until

MakeWorld = Callable[..., World]
GROUP = Group("s", "A", 16)


def sleepy(make_world: MakeWorld, idle_s: float = 3 * PERIOD_S, **keys: Any) -> World:  # noqa: F811
    servers = {"s": ServerKeys(idle_s=idle_s)}
    document = system_json(rate=LOW, minNumReplicas=0)
    return make_world(document, **{"servers": servers, "stabilization_s": 0, "tune": False, **keys})


def test_a_server_goes_to_0_once_nobody_has_asked_for_its_idle_time(
    make_world: MakeWorld,  # noqa: F811
) -> None:
    world = sleepy(make_world, scale_down_s=0)
    assert settled(world, LOW) > 1
    counts = [settled(world, 0, periods=1) for _ in range(4)]
    assert counts == [1, 1, 0, 0]


def test_less_than_the_window_of_demand_is_enough_to_be_idle(
    make_world: MakeWorld,  # noqa: F811
) -> None:
    world = sleepy(make_world, scale_down_s=20 * PERIOD_S)
    assert settled(world, LOW) > 1
    assert settled(world, 0, periods=3) == 0


def test_who_has_requests_is_not_idle_though_none_come(make_world: MakeWorld) -> None:  # noqa: F811
    world = sleepy(make_world, scale_down_s=0)
    settled(world, 5)
    (name,) = (each.name for each in world.actuator.replicas())
    object.__setattr__(world.reader.counters[name], "running", 1.0)
    assert settled(world, 0, periods=10) == 1
    object.__setattr__(world.reader.counters[name], "running", 0.0)
    assert settled(world, 0, periods=4) == 0


def test_a_server_that_is_woken_has_a_replica_for_its_idle_time(
    make_world: MakeWorld,  # noqa: F811
) -> None:
    world = sleepy(make_world, stabilization_s=10 * PERIOD_S)
    settled(world, LOW)
    assert settled(world, 0, periods=12) == 0
    assert not world.planner.wake([], world.at_s)
    assert world.planner.wake(["s"], world.at_s)
    assert settled(world, 0, periods=1) == 1, "however little time has passed since it went"
    assert not world.planner.wake(["s"], world.at_s)
    assert settled(world, 0, periods=2) == 1


def test_a_server_that_expects_no_load_begins_asleep(make_world: MakeWorld) -> None:  # noqa: F811
    world = make_world(system_json(rate=0, minNumReplicas=0))
    assert settled(world, 0, periods=2) == 0
    world.planner.wake(["s"], world.at_s)
    assert settled(world, 0, periods=1) == 1


def test_a_server_that_may_not_sleep_is_never_idle(make_world: MakeWorld) -> None:  # noqa: F811
    world = make_world(system_json(rate=0, minNumReplicas=1), scale_down_s=0)
    assert settled(world, 0, periods=10) == 1


def replica(name: str, state: ReplicaState) -> Replica:
    return Replica(name, GROUP, state)


@contextmanager
def served(app: Flask) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = Thread(target=server.serve_forever, name="controller's routes")
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(timeout=60)
    server.server_close()


STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING


def test_a_start_is_forecast_by_the_longest_of_the_last() -> None:
    starts = StartTimes()
    assert StartForecast().ready_in_s(0.0) is None
    for number, took_s in enumerate((60.0, 7.0, 9.0, 8.0, 5.0, 6.0)):
        begun_s = 100.0 * number
        starts.see([], begun_s)
        starts.see([replica(f"r{number}", STARTING)], begun_s + 1)
        told = starts.see([replica(f"r{number}", READY)], begun_s + took_s)["s"]
    assert told.longest_s == 9
    assert told.ready_in_s(begun_s + took_s + 100) == 0, "it is ready"
    gone = starts.see([replica("r5", DRAINING)], 1000.0)["s"]
    assert gone.ready_in_s(1000.0) == gone.ready_in_s(2000.0) == 9
    starts.see([], 2000.0)
    begun = starts.see([replica("r6", STARTING)], 2002.0)["s"]
    assert [begun.ready_in_s(at_s) for at_s in (2000, 2002, 2009, 2020)] == [9, 7, 0, 0]


def test_what_was_there_before_or_never_ready_is_no_measurement() -> None:
    starts = StartTimes()
    starts.see([replica("other", STARTING)], 0.0)
    assert starts.see([replica("other", READY)], 5.0)["s"].longest_s is None
    starts.see([], 10.0)
    starts.see([replica("r", ReplicaState.FAILED)], 12.0)
    assert starts.see([replica("r", READY)], 99.0)["s"].longest_s is None


def test_the_proxy_hears_of_sleepers_and_wakes_them(
    run: Callable[..., Running],  # noqa: F811
) -> None:
    running = run(document=system_json(rate=0, minNumReplicas=0))
    assert running.client.post("/invoke").status_code == 200
    assert running.actuator.replicas() == []
    told: dict[str, Any] = {"server": "s", "models": [], "ready_in_s": None}
    assert running.client.get("/sleepers").json == {"servers": [told]}
    assert running.client.post("/wake/s").json == told
    eventually(running.actuator.replicas, DEADLINE_S)
    running.at_s += 30
    running.actuator.settle()
    eventually(lambda: running.controller.ready_in_s("s") == 0, DEADLINE_S)
    assert 'hearth_cluster_start_seconds{server="s"} 30.0' in running.client.get("/metrics").text
    refused = running.client.post("/wake/other")
    assert (refused.status_code, (refused.json or {})["error"]["code"]) == (404, "unknown")
    assert "known: s" in (refused.json or {})["message"]


@pytest.mark.slow
def test_on_kubernetes_a_server_goes_to_0_and_is_woken(
    optimizer_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = KubernetesApi()
    kubelet = Kubelet(api, tmp_path / "pods", room=2)
    kubelet.deploy("chat", "s", "A", user_rows=16, replicas=0, model="mock")
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(api.kubeconfig(tmp_path)))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    document = system(system_json(rate=0, minNumReplicas=0))
    keys = {"period_s": 1, "rollout_s": 0.1, "servers": {"s": ServerKeys(idle_s=2)}}
    cluster = config(document, journal=tmp_path / "journal", stabilization_s=0, **keys)
    optimizer, reader = OptimizerClient(optimizer_url), PageReader(None)
    parts = ControllerParts(cluster, document, optimizer, reader)
    controller = Controller(parts, lambda: Deployments("hearth"))
    controller.start()
    try:
        with (
            served(create_app(controller, document)) as url,
            running_proxy(
                tmp_path,
                "",
                CLUSTER_URL=url,
                UPSTREAMS_SERVICE="hearth/chat",
                KUBERNETES_API=api.url,
            ) as proxy,
        ):
            until(lambda: '"ready"' in proxy.metric("/ready"), "it knows who sleeps")
            for _ in range(2):
                body = {"text": "hello", "max_tokens": 5}
                answer = requests.post(
                    f"{proxy.url}/inference", json=body, headers=bearer(), timeout=TIMEOUT_S
                )
                assert (answer.status_code, answer.text) == (200, "hello")
                until(lambda: not api.all("pods"), "it is at 0 again")
    finally:
        controller.stop()
        kubelet.stop()
        api.stop()
