"""Runs the optimizer, the proxy and the controller as processes that end with their parent."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from cluster.actuators.api_process import last_words
from cluster.errors import ClusterError
from common.connections.sockets import free_port
from common.files import OWNER_ALONE, write_whole
from lab.demo.cluster.files import Addresses

HOST = "127.0.0.1"
START_S, END_S = 60.0, 60.0
LOOK_S = 0.1


class DemoFailed(ClusterError):
    """The demo cannot go on."""


@contextmanager
def running_services(
    folder: Path,
    write_cluster: Callable[[Addresses], Path],
    proxy_settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Addresses, str]]:
    """Yields the services' addresses and a token for the proxy. `write_cluster` writes the
    cluster's file and returns its path. Raises DemoFailed."""
    addresses = Addresses(*_free_ports(3))
    secret = secrets.token_hex(32)
    token = _token(secret)
    write_whole(folder / "token", token, OWNER_ALONE)
    cluster_file = write_cluster(addresses)
    (folder / "upstreams.yaml").unlink(missing_ok=True)
    optimizer = {
        "INFERNO_HOST": HOST,
        "INFERNO_PORT": str(addresses.optimizer),
        "OPTIMIZER_STORE_PATH": str(folder / "optimizer.db"),
    }
    proxy = {
        "PROXY_PORT": str(addresses.proxy),
        "PROXY_METRICS_PORT": "0",
        "UPSTREAMS_FILE": str(folder / "upstreams.yaml"),
        "AUDIT_FILE": str(folder / "audit.jsonl"),
        "HEALTH_INTERVAL": "0.5",
        "CLUSTER_URL": addresses.url(addresses.controller),
        "JWT_SECRET": secret,
        **proxy_settings,
    }
    with ExitStack() as ends:

        def start(module: str, port: int, variables: Mapping[str, str], *options: str) -> None:
            log_path = folder / f"{module}.log"
            process = ends.enter_context(_running([module, *options], log_path, variables))
            _wait_for(lambda: _listens(port), process, log_path)

        start("optimizer", addresses.optimizer, optimizer)
        start("cluster", addresses.controller, {}, str(cluster_file))
        # The actuator writes this file when it has found its machines; the proxy must read it.
        until(lambda: (folder / "upstreams.yaml").exists(), START_S, "the upstreams file")
        start("proxy", addresses.proxy, proxy)
        yield addresses, token


def until(holds: Callable[[], object], timeout_s: float, what: str) -> None:
    """Waits for a condition. Raises DemoFailed if it does not become true."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            raise DemoFailed(f"{what} did not come within {timeout_s:g} s; the logs say more")
        time.sleep(LOOK_S)


@contextmanager
def _running(
    command: Sequence[str], log_path: Path, variables: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process in its own session: Ctrl-C reaches only the demo, which ends the process."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(END_S)


def _wait_for(
    answers: Callable[[], bool], process: subprocess.Popen[bytes], log_path: Path
) -> None:
    def is_up() -> bool:
        if process.poll() is not None:
            raise DemoFailed(f"{log_path.stem} has ended: {last_words(log_path)}")
        return answers()

    until(is_up, START_S, log_path.stem)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def _free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port(HOST))
    return list(ports)


def _token(secret: str) -> str:
    claims = '{"team_id": "demo", "token_id": "load", "role": "operator"}'
    command = [sys.executable, "-m", "scripts.jwt_util", "--secret", secret, "encode", claims]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=START_S
    ).stdout.strip()
