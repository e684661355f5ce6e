"""A cluster of one node, whose pods are API processes of this machine."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.actuators.api_process import last_words
from cluster.actuators.probes import BOUNDS
from common.fetch import answers_ok
from lab.kit.servers import GUNICORN, environment, free_port, kill_group
from tests.forked import ForkedProcess, fork_server
from tests.kubernetes_api import KubernetesApi, Object
from tests.kubernetes_workloads import (
    Workloads,
    container_status,
    is_ending,
    is_placed,
    is_ready,
    name_of,
)

HOST = "127.0.0.1"
TURN_S = 0.05
PRE_STOP_S = 0.3


@dataclass
class Running:
    process: ForkedProcess
    log: Path
    ending_s: float | None = None


class Kubelet(Workloads):
    """Pods run while the context lasts. Each has a port of its own, as they share an address."""

    def __init__(self, api: KubernetesApi, folder: Path, room: int) -> None:
        super().__init__(api, room)
        folder.mkdir()
        self._folder = folder
        self._running: dict[str, Running] = {}
        fork_server().wait_until_imported()  # seconds in which the API would answer nobody
        self._must_stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def settle(self) -> None:
        """Time passes by itself here."""

    def stop(self) -> None:
        self._must_stop.set()
        self._thread.join()
        self.clear()

    def clear(self) -> None:
        """Have no pod left."""
        with self._turn:
            for deployment in self.api.all("deployments"):
                deployment["spec"]["replicas"] = 0
                self.api.put("deployments", deployment)
            for pod in self.api.all("pods"):
                self.lose(name_of(pod))

    def lose(self, name: str) -> None:
        """As with its node: the process is killed, the pod forgotten."""
        with self._turn:
            if name in self._running:
                kill_group(self._running.pop(name).process)
            self.api.remove("pods", name)
            if any(name_of(each) == name for each in self.api.all("endpointslices")):
                self.api.remove("endpointslices", name)

    def _run(self) -> None:
        while not self._must_stop.wait(TURN_S):
            with self._turn:
                self.reconcile()
                for pod in self.api.all("pods"):
                    self._tend(pod)

    def _tend(self, pod: Object) -> None:
        running = self._running.get(name_of(pod))
        if is_ending(pod):
            self._see_off(pod, running)
        elif not is_placed(pod):
            self._schedule(pod)
        elif running is None:
            self._start(pod)
        elif running.process.poll() is not None:
            self._tell_crash(pod, running)
        elif not is_ready(pod) and answers(pod):
            self._tell_ready(pod)

    def _start(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        settings = {each["name"]: each["value"] for each in container["env"]}
        if settings["MODEL"] == "mock":
            settings |= {"MOCK_MODEL": "1", "MOCK_TOKENS_PER_SECOND": "50", "MODEL": ""}
        port, log_path = free_port(), self._folder / f"{name_of(pod)}.log"
        settings |= {"SERVICE_HOST": HOST, "SERVICE_PORT": str(port)}
        settings |= {"WEIGHTS_DB": str(log_path.with_suffix(".db"))}
        with log_path.open("wb") as log:
            process = fork_server().start(
                GUNICORN, log, environment(**settings), start_new_session=True
            )
        self._running[name_of(pod)] = Running(process, log_path)
        container["ports"] = [{"name": "http", "containerPort": port}]
        pod["status"] |= {"phase": "Running", "podIP": HOST}
        self.api.put("pods", pod)

    def _tell_ready(self, pod: Object) -> None:
        pod["status"]["conditions"].append({"type": "Ready", "status": "True"})
        self._tell_endpoint(pod, {"ready": True, "serving": True, "terminating": False})
        self.api.put("pods", pod)  # last: who sees that it is ready finds it listed

    def _tell_crash(self, pod: Object, running: Running) -> None:
        """It is not run again soon, which would show as a moment's start."""
        waiting = {
            "reason": "CrashLoopBackOff",
            "message": "back-off 10s restarting failed container",
        }
        ended = {"reason": "Error", "exitCode": 3, "message": last_words(running.log)}
        status = container_status(state={"waiting": waiting}, lastState={"terminated": ended})
        pod["status"]["containerStatuses"] = [status]
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        self.api.put("pods", pod)

    def _see_off(self, pod: Object, running: Running | None) -> None:
        if running is None or running.process.poll() is not None:
            self.lose(name_of(pod))
        elif running.ending_s is None:
            running.ending_s = time.monotonic() + PRE_STOP_S
        elif time.monotonic() > running.ending_s:
            running.process.terminate()

    def _tell_endpoint(self, pod: Object, conditions: Object) -> None:
        (port,) = pod["spec"]["containers"][0]["ports"]
        endpoint = {"addresses": [HOST], "conditions": conditions}
        self.api.put(
            "endpointslices",
            {
                "metadata": {
                    "name": name_of(pod),
                    "labels": {"kubernetes.io/service-name": "chat"},
                },
                "addressType": "IPv4",
                "endpoints": [endpoint],
                "ports": [{"name": "http", "port": port["containerPort"]}],
            },
        )

    def _end(self, pods: list[Object]) -> None:
        super()._end(pods)
        for pod in pods:
            if is_ready(pod):
                self._tell_endpoint(pod, {"ready": False, "serving": True, "terminating": True})


def answers(pod: Object) -> bool:
    (port,) = pod["spec"]["containers"][0]["ports"]
    return answers_ok(f"http://{HOST}:{port['containerPort']}/ready", BOUNDS)
