"""What a newcomer does: start both processes, run the printed curl line, press Ctrl-C.

From a clone; test_wheel.py does it from a wheel.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import requests

from lab.kit.servers import ROOT, TIMEOUT_S, environment, eventually
from tests.ports import free_ports

SCRIPT = (sys.executable, "-m", "scripts.hearth", "serve")


class Stack:
    def __init__(self, process: subprocess.Popen[bytes], log_path: Path, ports: list[int]) -> None:
        self.process = process
        self.log_path = log_path
        self.api = f"http://127.0.0.1:{ports[0]}"
        self.proxy = f"http://127.0.0.1:{ports[1]}"

    def curl_line(self) -> str | None:
        assert self.process.poll() is None, self.log_path.read_text()
        lines = self.log_path.read_text().splitlines()
        return next((line for line in lines if line.startswith("curl ")), None)

    def authorization(self) -> dict[str, str]:
        line = self.curl_line()
        assert line is not None
        token = line.split("Bearer ")[1].split("'")[0]
        return {"Authorization": f"Bearer {token}"}


@contextmanager
def started(
    log_path: Path, command: Sequence[str | Path], cwd: Path = ROOT, **settings: object
) -> Iterator[Stack]:
    ports = free_ports(3)
    names = ("SERVICE_PORT", "PROXY_PORT", "PROXY_METRICS_PORT")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(**dict(zip(names, ports, strict=True)), **settings),
            stdout=log,
            stderr=log,
            # Tests run in the background of a shell inherit that Ctrl-C is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    stack = Stack(process, log_path, ports)
    eventually(stack.curl_line)
    yield stack
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)


def assert_curl_line_streams(stack: Stack) -> None:
    assert shutil.which("curl"), "the test runs the printed line: sudo apt-get install curl"
    line = stack.curl_line()
    assert line is not None
    finished = subprocess.run(
        ["sh", "-c", f"{line} -sS"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert "Paris" in finished.stdout


def test_one_word_serves_smollm2_with_its_heads(tmp_path: Path) -> None:
    with started(tmp_path / "log", SCRIPT, MODEL="smollm2", USER_ROWS=2) as stack:
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "What is Docker?"}]}
        answer = requests.post(
            f"{stack.proxy}/v1/chat/completions",
            json=body | {"max_tokens": 24, "temperature": 0},
            headers=stack.authorization(),
            timeout=TIMEOUT_S,
        ).json()
        assert "Docker" in answer["choices"][0]["message"]["content"]
        assert "Medusa heads of" in stack.log_path.read_text()


def test_killed_script_takes_both_processes_with_it(tmp_path: Path) -> None:
    with started(
        *(tmp_path / "log", [*SCRIPT, "--mock"]),
        SERVICE_HOST="127.0.0.3",
        PROXY_HOST="127.0.0.2",
        UPSTREAM="",
    ) as stack:
        printed = stack.log_path.read_text()
        assert "curl -N http://127.0.0.2:" in printed
        assert "Dashboard: http://127.0.0.3:" in printed
        servers = psutil.Process(stack.process.pid).children(recursive=True)
        stack.process.kill()
        stack.process.wait(TIMEOUT_S)
        gone, alive = psutil.wait_procs(servers, TIMEOUT_S)
        for server in alive:
            server.kill()
        assert (len(gone), alive) == (4, [])  # two arbiters, each with its worker
