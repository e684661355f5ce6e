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
START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 60.0
MAX_PAUSE_S = 0.1  # between two looks
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
GUNICORN = ("gunicorn", "--config", "gunicorn.conf.py")  # for the API
MOCK_APP = "inference_api._mock_inference_api_server:create_test_server()"

# Below those that Linux gives to connections and to whoever asks for any port, since seconds pass
# between the choice of a port and its use; above those of Ray's workers.
PORTS = range(20_000, 32_768)

given_ports: set[int] = set()  # whoever asked may not listen yet


def exit_on_sigterm() -> None:
    """End by SIGTERM as by Ctrl-C, so that what was started in a session of its own ends too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def free_port() -> int:
    """A port that nobody listens on, and that this process was not given before.

    Raises RuntimeError where none is left.
    """
    begin = randbelow(len(PORTS))  # by no seed: two processes do not follow each other
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
    timeout_s: float = 60.0,
    every_s: float = 0.01,
    what: str | Callable[[], str] = "it",
) -> Any:
    """The first true value of `holds()`; fails when none comes in time, and says `what` is not so.

    What takes longer is looked at less often: looking takes the processor from what is waited for.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if value := holds():
            return value
        time.sleep(every_s)
        every_s = max(every_s, min(1.25 * every_s, MAX_PAUSE_S))
    raise AssertionError(f"{what() if callable(what) else what} is still false after {timeout_s} s")


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that grows, as far as they are whole; none before there is the file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Process(Protocol):
    """A part of subprocess.Popen."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, signum: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


# Runs a module with arguments as `python -m` does, in a session of its own, with this log and
# this environment.
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
        """Returns the JSON of `/ready`; {} while nobody answers."""
        try:
            state: dict[str, Any] = ask(f"{self.url}/ready", PROBE).json()
        except FetchFailed:
            return {}
        return state

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, f"gunicorn has ended:\n{self.log}"
            return self.state().get("status") == "ready"

        # Not every 10 ms: each answer takes the interpreter from the thread that loads the model.
        eventually(is_ready, timeout_s, every_s=0.1)

    def is_idle(self) -> bool:
        """Nothing left behind: no busy row, nothing queued, no session."""
        state = self.state()
        return [state["busy_rows"], state["queued"], state["sessions"]] == [0, 0, 0]

    def post(self, path: str = "/inference", **fields: Any) -> requests.Response:
        return requests.post(f"{self.url}{path}", json=fields, timeout=60)

    def get(self, path: str) -> requests.Response:
        return requests.get(f"{self.url}{path}", timeout=60)

    def open_stream(self, **fields: Any) -> requests.Response:
        """Returns once the first byte is there; close it to leave early."""
        return requests.post(f"{self.url}/inference", json=fields, timeout=60, stream=True)

    def send_raw(self, request: bytes) -> socket.socket:
        """Send bytes on a connection of its own and leave it open."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        client.sendall(request)
        return client

    def stop(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(STOP_TIMEOUT_S)


def post_bytes(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def environment(**settings: object) -> dict[str, str]:
    """The environment of a served process: ours, without settings, plus the given ones."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {name: str(value) for name, value in settings.items()}


def kill_group(process: Process) -> None:
    """Kill a process that leads a session, and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_TIMEOUT_S)


def run_module(arguments: Sequence[str], log: BinaryIO, env: Mapping[str, str]) -> Process:
    """The true command, as a Start."""
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
    start_timeout_s: float | None = START_TIMEOUT_S,
    **settings: object,
) -> Iterator[ServedApi]:
    """gunicorn with gunicorn.conf.py, ready unless `start_timeout_s` is None.

    What it stores lies beside its log. Its whole process group is gone afterwards.
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
