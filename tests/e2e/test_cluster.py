"""A whole cluster on this machine: the optimizer, the controller with local processes, a proxy.

Load rises and replicas follow, it falls and they go, and no request is lost on the way. The mock
model's answers take a second for their 50 tokens, whatever the machine is doing.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from common.fetch import answers_ok
from lab.kit.servers import TIMEOUT_S, Process, environment, eventually, json_lines
from tests.cluster.foreign_engine import command_of
from tests.forked import fork_server
from tests.ports import free_port, free_ports
from tests.proxy.support import ProxyProcess, bearer, running_proxy
from tests.service import ROOT

ROWS, TOKENS, TOKENS_PER_S = 4, 50, 50
TEXT = "x" * TOKENS
QUICK = {"kind": "local", "folder": "replicas", "capacity": {"CPU": 4}, "leave_s": 5}
# A replica can do 4, and about half of that within its SLO.
LOW_PER_S, HIGH_PER_S = 1.0, 3.5


SETTINGS = {"MOCK_MODEL": 1, "MOCK_TOKENS_PER_SECOND": TOKENS_PER_S}
# It says as much in the same time, and starts in a tenth of Hearth's.
FOREIGN = {
    "engine": "vllm",
    "command": command_of("vllm"),
    "settings": {"PYTHONPATH": str(ROOT)},
}


def system(least: int = 1) -> dict[str, Any]:
    ms = 1000 / TOKENS_PER_S
    return {"system": {
        "acceleratorData": {"accelerators": [{"name": "core", "type": "core", "cost": 1.0}]},
        "capacityData": {"count": [{"type": "core", "count": 4}]},
        "modelData": {"models": [
            {"name": "mock", "acc": "core", "maxBatchSize": ROWS, "atTokens": TOKENS,
             "decodeParms": {"alpha": ms, "beta": 0.0},
             "prefillParms": {"gamma": 1.0, "delta": 0.0}}]},
        "serviceClassData": {"serviceClasses": [{"name": "chat", "priority": 1, "modelTargets": [
            {"model": "mock", "slo-ttft": 100, "slo-itl": 2 * ms}]}]},
        "serverData": {"servers": [{"name": "chat", "class": "chat", "model": "mock",
                                    "minNumReplicas": least, "maxBatchSize": ROWS}]},
        "optimizerData": {"optimizer": {}},
    }}  # fmt: skip


class Cluster:
    def __init__(self, url: str, folder: Path, process: Process) -> None:
        self.url, self.folder, self.process = url, folder, process

    def state(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = requests.get(f"{self.url}/state", timeout=TIMEOUT_S).json()
        except requests.ConnectionError:
            return {"replicas": []}
        return answer

    def ready(self) -> int:
        return len(ready_names(self))

    def journal(self) -> list[dict[str, Any]]:
        return json_lines(self.folder / "cluster.jsonl")


@contextmanager
def running(folder: Path, arguments: list[str], url: str, **settings: object) -> Iterator[Process]:
    """`python -m ...`, once it answers /health."""
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        own = environment(PYTHONPATH=ROOT, **settings)
        process = fork_server().start(arguments, log, own, cwd=folder)
    try:
        eventually(lambda: answers_ok(f"{url}/health"), every_s=0.1)
        yield process
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@contextmanager
def running_cluster(
    folder: Path, document: dict[str, Any], **changed: Any
) -> Iterator[tuple[Cluster, ProxyProcess]]:
    """All of it; `changed` are keys of the cluster's file."""
    optimizer_port, metrics_port = free_ports(2)
    port = free_port()
    keys = {
        "system": "system.json",
        "optimizer": f"http://127.0.0.1:{optimizer_port}",
        "listen": f"127.0.0.1:{port}",
        "period_s": 2,
        "rollout_s": 0.2,
        "stabilization_s": 2,
        "scale_down_s": 5,
        "actuator": {"kind": "local", "folder": "replicas", "capacity": {"CPU": 4}},
        "upstreams_file": "upstreams.yaml",
        "proxy": {"url": f"http://127.0.0.1:{metrics_port}"},
        "journal": "cluster.jsonl",
        "tune": False,
        "servers": {"chat": {"settings": SETTINGS}},
        "accelerators": {"core": {"resources": {"CPU": 1}}},
        **changed,
    }
    (folder / "system.json").write_text(json.dumps(document))
    (folder / "cluster.yaml").write_text(yaml.safe_dump(keys))
    url, upstreams = f"http://127.0.0.1:{port}", folder / "upstreams.yaml"
    try:
        with (
            running(folder, ["optimizer"], f"http://127.0.0.1:{optimizer_port}",
                    INFERNO_HOST="127.0.0.1", INFERNO_PORT=optimizer_port),
            running(folder, ["cluster", "cluster.yaml"], url) as process,
        ):  # fmt: skip
            eventually(upstreams.exists, every_s=0.1)
            with running_proxy(
                folder, "", metrics_port=metrics_port, UPSTREAMS_FILE=str(upstreams),
                CLUSTER_URL=url, QUEUE_TIMEOUT=f"{TIMEOUT_S:g}", QUEUE_SIZE="1000",
                CONNECT_TIMEOUT=f"{TIMEOUT_S:g}",
            ) as proxy:  # fmt: skip
                yield Cluster(url, folder, process), proxy
    finally:
        end_replicas(folder)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, ProxyProcess]]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), system()) as (found, proxy):
        eventually(lambda: '"ready"' in proxy.metric("/ready"), every_s=0.1)
        yield found, proxy


def end_replicas(folder: Path) -> None:
    """They outlive their controller."""
    for record in (folder / "replicas").glob("*.json"):
        try:
            process = psutil.Process(json.loads(record.read_text())["pid"])
            for each in [*process.children(recursive=True), process]:
                each.kill()
            process.wait(TIMEOUT_S)
        except psutil.NoSuchProcess:
            continue


class Clients:
    """So many requests a second, evenly, each of which has to be answered as a whole."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self._url, self._pool = f"{proxy.url}/inference", ThreadPoolExecutor(64)
        self._sent: list[Future[str]] = []

    def send(self, per_s: float, until: Any) -> None:
        """Until `until()` is true, at that rate however long `until` takes to answer."""
        give_up_s, next_s = time.monotonic() + TIMEOUT_S, time.monotonic()
        while not until():
            assert time.monotonic() < give_up_s
            while next_s <= time.monotonic():
                self._sent.append(self._pool.submit(self._one))
                next_s += 1 / per_s
            time.sleep(max(next_s - time.monotonic(), 0.0))

    def answers(self) -> list[str]:
        self._pool.shutdown()
        return [each.result() for each in self._sent]

    def _one(self) -> str:
        body = {"text": TEXT, "max_tokens": TOKENS}
        answer = requests.post(self._url, json=body, headers=bearer(), timeout=TIMEOUT_S)
        return answer.text if answer.ok else f"{answer.status_code}: {answer.text}"


def test_replicas_follow_the_load_up_and_down_and_no_request_is_lost(
    cluster: tuple[Cluster, ProxyProcess],
) -> None:
    found, proxy = cluster
    clients = Clients(proxy)
    cycles = len(found.journal())
    clients.send(LOW_PER_S, lambda: len(found.journal()) >= cycles + 3 and found.ready() == 1)
    clients.send(HIGH_PER_S, lambda: found.ready() >= 2)
    clients.send(LOW_PER_S, lambda: len(found.state()["replicas"]) == 1)
    answers = clients.answers()
    assert set(answers) == {TEXT}
    changes = [each["at"] for each in found.journal() if each["servers"]["chat"]["has_changed"]]
    assert len(changes) >= 3


def test_the_loop_learns_of_another_engine_by_its_metrics(tmp_path: Path) -> None:
    """Each of its tokens takes 20 ms and a little, and the system expects 10 ms. How near it comes
    in how many cycles, the optimizer's tests say."""
    document = system()
    (model,) = document["system"]["modelData"]["models"]
    model["decodeParms"] = {"alpha": 10.0, "beta": 0.0}
    servers = {"chat": FOREIGN}
    with running_cluster(tmp_path, document, servers=servers, tune=True) as (found, proxy):
        eventually(lambda: '"ready"' in proxy.metric("/ready"), every_s=0.1)
        clients = Clients(proxy)

        def learned() -> list[dict[str, Any]]:
            """What was told of the server since its speed is known, while requests came."""
            cycles = [
                each["servers"]["chat"]
                for each in found.journal()
                if any(speed["decode"] > 1.4 for speed in each["speeds"])
            ]
            return [
                each
                for each in cycles
                if each["measured"]["itl_ms"] and (each["predicted"]["itl_ms"] or 0) > 10
            ]

        clients.send(LOW_PER_S * 3, lambda: bool(learned()))
        assert set(clients.answers()) == {TEXT}
        assert learned()[-1]["measured"]["itl_ms"] == pytest.approx(1000 / TOKENS_PER_S)


def test_a_server_goes_from_1_to_0_and_back_and_no_request_is_lost(tmp_path: Path) -> None:
    """Requests come when there is no replica, when there is one, and when it is about to go."""
    keys = {"period_s": 1, "actuator": QUICK, "servers": {"chat": FOREIGN | {"idle_s": 2}}}
    with running_cluster(tmp_path, system(least=0), **keys) as (found, proxy):
        clients = Clients(proxy)

        def is_about_to_go() -> bool:
            """Not one of several alone, whose places the others take. Gone is seen where this came
            too late."""
            return all(each["state"] == "draining" for each in found.state()["replicas"])

        eventually(lambda: '"ready"' in proxy.metric("/ready"), every_s=0.1)  # knows who sleeps
        eventually(lambda: found.state().get("cycle"))
        assert found.state()["replicas"] == []
        clients.send(HIGH_PER_S, found.ready)
        eventually(is_about_to_go)
        clients.send(HIGH_PER_S, found.ready)
        eventually(lambda: not found.state()["replicas"])
        clients.send(LOW_PER_S, found.ready)
        answers = clients.answers()
        assert set(answers) == {TEXT}
        (told,) = requests.get(f"{found.url}/sleepers", timeout=TIMEOUT_S).json()["servers"]
        assert (told["server"], told["models"]) == ("chat", [])
        assert 0 <= told["ready_in_s"] < TIMEOUT_S
        plans = [
            sum(group["replicas"] for group in each["servers"]["chat"]["plan"])
            for each in found.journal()
        ]
        changes = [count for count, _ in groupby(count > 0 for count in plans)]
        assert changes[:5] == [False, True, False, True, False]


def test_a_controller_that_is_started_again_finds_its_replicas(
    cluster: tuple[Cluster, ProxyProcess],
) -> None:
    found, _ = cluster
    before = set(ready_names(found))
    assert before
    gunicorn = psutil.Process(found.process.pid)
    (worker,) = gunicorn.children()
    worker.kill()
    worker.wait(TIMEOUT_S)
    eventually(lambda: before <= set(ready_names(found)), every_s=0.1)
    assert worker not in gunicorn.children()


def ready_names(cluster: Cluster) -> list[str]:
    return [each["name"] for each in cluster.state()["replicas"] if each["state"] == "ready"]
