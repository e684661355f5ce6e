"""Starts the real API for tests and benches: gunicorn on a free port, real sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from secrets import randbelow
from typing import Any, BinaryIO, Protocol

import requests

from common.fetch import PROBE, FetchFailed, ask

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0  # for a start, an answer or an end, on a busy machine
MAX_PAUSE_S = 0.1  # longest pause between two checks
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
GUNICORN = ("gunicorn", "--config", "gunicorn.conf.py")  # for the API
MOCK_APP = "inference_api._mock_inference_api_server:create_test_server()"

# These ports are below the range from which Linux assigns any free port, because seconds pass
# between the choice of a port and its use; they are above the ports of Ray's workers.
PORTS = range(20_000, 32_768)

given_ports: set[int] = set()  # ports that were returned and may not be in use yet


def exit_on_sigterm() -> None:
    """Makes SIGTERM end this process in order, so that what it started in other sessions ends."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def free_port() -> int:
    """Returns a port on which nothing listens and that was not returned before in this process.

    Raises RuntimeError if none is left.
    """
    begin = randbelow(len(PORTS))  # without a seed, so that processes choose different ports
    for port in chain(PORTS[begin:], PORTS[:begin]):
        if port not in given_ports and is_free(port):
            given_ports.add(port)
            return port
    raise RuntimeError(f"no port from {PORTS[0]} to {PORTS[-1]} is free")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def eventually(
    holds: Callable[[], Any],
    timeout_s: float = TIMEOUT_S,
    every_s: float = 0.01,
    what: str | Callable[[], str] = "it",
) -> Any:
    """Returns the first true value of `holds()`. Raises AssertionError, which names `what`, if none
    comes in time.

    Checks less and less often, because checks take the processor from what they wait for.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if value := holds():
            return value
        time.sleep(every_s)
        every_s = max(every_s, min(1.25 * every_s, MAX_PAUSE_S))
    raise AssertionError(f"{what() if callable(what) else what} is still false after {timeout_s} s")


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of a growing file; empty before the file exists."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Process(Protocol):
    """The part of subprocess.Popen that is needed here."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, signum: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


# Runs `python -m` with arguments in a session of its own, with a log and an environment.
Start = Callable[[Sequence[str], BinaryIO, Mapping[str, str]], Process]


class ServedApi:
    """A running API process."""

    def __init__(self, process: Process, port: int, log_path: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log_path = log_path

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def state(self) -> dict[str, Any]:
        """Returns the JSON of `/ready`; {} while the server does not answer."""
        try:
            state: dict[str, Any] = ask(f"{self.url}/ready", PROBE).json()
        except FetchFailed:
            return {}
        return state

    def wait_until_ready(self, timeout_s: float = TIMEOUT_S) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, f"gunicorn has ended:\n{self.log}"
            return self.state().get("status") == "ready"

        # Not every 10 ms, because each answer takes the interpreter from the loading thread.
        eventually(is_ready, timeout_s, every_s=0.1)

    def is_idle(self) -> bool:
        """Returns whether nothing is left: no busy row, no queued request, no session."""
        state = self.state()
        return [state["busy_rows"], state["queued"], state["sessions"]] == [0, 0, 0]

    def post(self, path: str = "/inference", **fields: Any) -> requests.Response:
        return requests.post(f"{self.url}{path}", json=fields, timeout=TIMEOUT_S)

    def get(self, path: str) -> requests.Response:
        return requests.get(f"{self.url}{path}", timeout=TIMEOUT_S)

    def open_stream(self, **fields: Any) -> requests.Response:
        """Returns a response once its head has come. Close it to leave early."""
        return requests.post(f"{self.url}/inference", json=fields, timeout=TIMEOUT_S, stream=True)

    def send_raw(self, request: bytes) -> socket.socket:
        """Sends bytes on a new connection. Returns the open connection."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)
        client.sendall(request)
        return client

    def stop(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(TIMEOUT_S)


def post_bytes(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def environment(**settings: object) -> dict[str, str]:
    """Returns the environment of a served process: KEPT_VARIABLES and the given settings."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {name: str(value) for name, value in settings.items()}


def kill_group(process: Process) -> None:
    """Kills a process that leads a session, and all processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)


def run_module(arguments: Sequence[str], log: BinaryIO, env: Mapping[str, str]) -> Process:
    """Runs `python -m`; the usual `Start`."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=env,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


@contextmanager
def served_by(
    start: Start,
    log_path: Path,
    app: str | None = None,
    start_timeout_s: float | None = TIMEOUT_S,
    **settings: object,
) -> Iterator[ServedApi]:
    """Yields the API under gunicorn with gunicorn.conf.py, ready unless `start_timeout_s` is None.

    Its stores are beside its log. Its whole process group has ended afterwards.
    """
    port = free_port()
    own = {"SERVICE_PORT": port, "WEIGHTS_DB": log_path.with_name(f"{log_path.name}.weights.db")}
    with log_path.open("wb") as log:
        process = start([*GUNICORN, *([app] if app else [])], log, environment(**own | settings))
    api = ServedApi(process, port, log_path)
    try:
        if start_timeout_s is not None:
            api.wait_until_ready(start_timeout_s)
        yield api
    finally:
        kill_group(process)


served = partial(served_by, run_module)
